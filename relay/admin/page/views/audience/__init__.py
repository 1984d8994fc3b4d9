"""The audience of the videos."""
