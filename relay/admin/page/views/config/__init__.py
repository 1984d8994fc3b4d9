"""The config: its sources, certificates and settings, and rotations."""
