"""The video service: its delivery rules and its behaviour as a sender."""
