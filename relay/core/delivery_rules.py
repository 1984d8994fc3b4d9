"""When the video service sends an event, and when it gives one up (video-service.md, section 6)."""

WAITS_S = (20, 40, 80, 160, 320)
"""The waits before the second to the sixth attempt.

Whether they run from the start or from the end of an attempt is not documented.
"""

TIMEOUT_S = 10.0
"""How long each attempt waits for an answer."""
