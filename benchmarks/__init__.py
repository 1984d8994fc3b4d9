"""Speed and memory of the relay, as ratios against baselines of the same run; run by hand."""
