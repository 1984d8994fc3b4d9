"""Recognition of the sender's own retries among requests with a wrong signature.

A stranger can send any number of them, but hardly the same body after exactly the sender's waits.
"""

import hashlib

from relay.core.delivery_rules import TIMEOUT_S, WAITS_S

BODIES_MAX = 4096
"""Most recent bodies remembered; about 1 MiB in all."""

_EARLY = 0.9
_LATE = 1.1


class Mismatches:
    """Remembers the bodies of requests that matched no secret."""

    def __init__(self) -> None:
        self._last_s: dict[tuple[str, bytes], float] = {}

    def is_retry(self, source: str, body: bytes, now_s: float) -> bool:
        """Record a request; True if the last one with its body was one of the sender's waits ago.

        `now_s` is of a monotonic clock.
        """
        key = (source, hashlib.sha256(body).digest())
        last_s = self._last_s.pop(key, None)
        self._last_s[key] = now_s
        if len(self._last_s) > BODIES_MAX:
            del self._last_s[next(iter(self._last_s))]
        return last_s is not None and _is_wait(now_s - last_s)


def _is_wait(gap_s: float) -> bool:
    return any(_EARLY * wait_s <= gap_s <= _LATE * wait_s + TIMEOUT_S for wait_s in WAITS_S)
