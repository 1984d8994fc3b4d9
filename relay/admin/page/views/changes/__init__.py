"""Changes by operators."""
