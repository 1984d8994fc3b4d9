"""Causes of dead letters: those of a sink with the same reason."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from relay.store.operations import Reason

REASON_MAX = 300
"""Characters of a reason that stand in a URL; as a filter, a part of it selects as well."""

_BEFORE_ADDRESS = re.compile(r"(.*?)[^\s@]*@", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Cause:
    """A group of dead letters."""

    reason: Reason
    chosen: Mapping[str, str | None] | None
    """The filter that selects them; None if no filter does."""


def cause_of(reason: Reason, **more: str | None) -> Cause:
    """Find the filter of a group, with further fields."""
    part = _part_of(reason.reason or "")
    if part is None:
        return Cause(reason, None)
    return Cause(reason, {"sink": reason.sink, "outcome": "dead", "reason": part, **more})


def _part_of(reason: str) -> str | None:
    """Return the beginning of a reason without any address, which must not stand in a URL."""
    found = _BEFORE_ADDRESS.match(reason)
    return (found[1] if found else reason)[:REASON_MAX].strip() or None
