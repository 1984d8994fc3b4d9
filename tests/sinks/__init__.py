"""The tests of the sinks, and of what they share on their way out."""
