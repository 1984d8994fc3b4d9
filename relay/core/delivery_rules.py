"""Delivery schedule of the video service, for all who keep it or count on it.

video-service.md, section 6.
"""

WAITS_S = (20, 40, 80, 160, 320)
"""Waits before the second to the sixth attempt, in seconds.

It is undocumented whether they run from the start or the end of an attempt.
"""

TIMEOUT_S = 10.0
"""Response timeout of each attempt, in seconds."""

WINDOW_S = sum(WAITS_S)
"""Time from an event's first attempt to its last, in seconds, if responses are quick."""

GIVE_UP_S = WINDOW_S + (len(WAITS_S) + 1) * TIMEOUT_S
"""Time from an event's first attempt until the sender has given up, in seconds."""
