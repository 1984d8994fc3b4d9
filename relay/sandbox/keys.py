"""API keys: access, last use, revocation, and the limits of requests (sections 2, 5 and 8)."""

import math
import secrets
from collections import defaultdict, deque
from collections.abc import Sequence

import msgspec

from relay.core.clock import Clock
from relay.sandbox.errors import Refusal, unknown
from relay.sandbox.model import Access, Key, Workspace

LEVELS: tuple[Access, ...] = ("Read only", "Read & write videos", "Admin")
"""Each level may do what the ones before it may."""

_MINUTE_S = 60.0


class Limits(msgspec.Struct):
    """Requests that a key may make in a minute; `--speed` does not change it."""

    requests: int = 600
    imports: int = 30


class Keys:
    """The keys of a workspace, and what each has done in the last minute."""

    def __init__(self, workspace: Workspace, clock: Clock) -> None:
        self._workspace = workspace
        self._clock = clock
        self.limits = Limits()
        self._requests: defaultdict[str, deque[float]] = defaultdict(deque)
        self._imports: defaultdict[str, deque[float]] = defaultdict(deque)

    def create(self, name: str, access: Access) -> Key:
        key = Key(
            id=self._workspace.new_id("key"),
            name=name,
            access=access,
            value=f"vk_{secrets.token_urlsafe(24)}",
            created_ms=self._clock.now_ms(),
        )
        self._workspace.keys[key.id] = key
        return key

    def create_missing(self) -> Sequence[Key]:
        """Create a key of each level that no valid key has; returns one valid key of each."""
        valid = [key for key in self._workspace.keys.values() if key.revoked_ms is None]
        by_access = {key.access: key for key in reversed(valid)}
        return [by_access.get(level) or self.create(level, level) for level in LEVELS]

    def revoke(self, key_id: str) -> Key:
        key = self._workspace.keys.get(key_id)
        if key is None:
            raise unknown("key")
        key.revoked_ms = key.revoked_ms or self._clock.now_ms()
        return key

    def authenticate(self, authorization: str | None) -> Key:
        """Return the key of a request and count the request; raises Refusal."""
        scheme, _, value = (authorization or "").partition(" ")
        key = self._valid(value.strip()) if scheme.lower() == "bearer" else None
        if key is None:
            raise Refusal(401, "The API key is missing or not valid.")
        key.last_used_ms = self._clock.now_ms()
        self._count(self._requests[key.id], self.limits.requests)
        return key

    def count_import(self, key: Key) -> None:
        """Raise Refusal beyond the limit of imports."""
        self._count(self._imports[key.id], self.limits.imports)

    def _valid(self, value: str) -> Key | None:
        for key in self._workspace.keys.values():
            is_same = secrets.compare_digest(key.value.encode(), value.encode())
            if is_same and key.revoked_ms is None:
                return key
        return None

    def _count(self, times: deque[float], limit: int) -> None:
        now_s = self._clock.monotonic()
        while times and times[0] <= now_s - _MINUTE_S:
            times.popleft()
        if len(times) >= limit:
            wait_s = max(1, math.ceil(times[0] + _MINUTE_S - now_s))
            raise Refusal(429, f"The limit is {limit} per minute and key.", retry_after_s=wait_s)
        times.append(now_s)


def permit(key: Key, access: Access) -> None:
    """Raise Refusal unless the key has this access or more."""
    if LEVELS.index(key.access) < LEVELS.index(access):
        raise Refusal(403, f"The key's access is {key.access}; this needs {access}.")
