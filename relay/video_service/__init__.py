"""The video service's behaviour as a sender."""
