"""Values that labels can take, and buckets of the histograms."""

from typing import get_args

from relay.core.errors import BodyFault, RejectReason
from relay.core.event import KINDS, WEBHOOK_TEST
from relay.core.sink_status import WaitReason

CODES = (200, 202, 401, 404, 405, 408, 413, 503)
NOT_HTTP = (400, 431, 505)
"""Response codes for requests whose head is refused, so their source is unknown."""
REASONS = (
    *get_args(RejectReason),
    *get_args(BodyFault),
    *("unavailable", "method", "path", "headers"),
)
LISTENERS = ("public", "admin")
LIMITS = ("total", "address", "busy", "files", "memory")
SETTLED = ("delivered", "dead")
DROPPED = ("count", "bytes", "rate", "store")
ENRICHED = ("answered", "cached", "erased", "late", "failed", "paused", "busy")
MEMBER_STATES = ("live", "away")
DIRECTIONS = ("in", "out")
BEHIND = ("growing", "too_long")
STATES = ("active", "throttled", "parked", "paused")
WAITS = get_args(WaitReason)
ALL_KINDS = (*KINDS, "other")
RECONSTRUCTED_KINDS = tuple(kind for kind in KINDS if kind != WEBHOOK_TEST)

FAST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
"""Buckets in seconds, dense around the goal of an acknowledgement, up to the sender's timeout."""
ACK_BOUNDS = FAST
ATTEMPT = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
LAG = (0.01, 0.05, 0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 14400, 43200, 86400)
_OFF = (1, 5, 10, 30, 60, 120, 300, 600)
SKEW = (*(-bound for bound in reversed(_OFF)), 0, *_OFF)
