"""`relay demo`: the whole main job without a config."""
