"""Causes of dead letters: those of a sink with the same reason."""

import secrets
from collections.abc import Mapping
from hashlib import blake2b

import msgspec

from relay.admin.page.reasons import shown_part
from relay.store.dead_letters import Reason

_KEY = secrets.token_bytes(16)
# Without it, a viewer could guess the address in a reason by its digest.


class Cause(msgspec.Struct, frozen=True):
    """A group of dead letters."""

    reason: Reason
    chosen: Mapping[str, str | None] | None
    """The filter that selects them; None if no filter does."""

    @property
    def key(self) -> str:
        """The same in the next view of this group, whatever its place among the others."""
        text = f"{self.reason.sink}\0{self.reason.reason}".encode(errors="replace")
        return blake2b(text, key=_KEY, digest_size=6).hexdigest()


def cause_of(reason: Reason, **more: str | None) -> Cause:
    """Find the filter of a group, with further fields."""
    part = shown_part(reason.reason or "")
    if part is None:
        return Cause(reason, None)
    return Cause(reason, {"sink": reason.sink, "outcome": "dead", "reason": part, **more})
