"""Times as people type them into forms."""

import re
from typing import Annotated

from msgspec import Meta
from starlette.exceptions import HTTPException

from relay.core.config_values import Duration, Moment

Time = Annotated[str, Meta(min_length=1, max_length=40)]

_AGO = re.compile("[0-9]{1,6}(s|m|h|d)")
_EXPECTED = "a time in UTC such as 2026-11-22 14:05, one with an offset, or 2h for 2 h ago"


def moment(label: str, text: str | None, now_ms: int) -> int | None:
    """Parse a time in UTC or with an offset, or how long ago it was; raises HTTPException."""
    if text is None:
        return None
    text = text.strip()
    try:
        if _AGO.fullmatch(text):
            return max(0, now_ms - Duration.parse(text))
        return max(0, Moment.parse(text.removesuffix("UTC").strip()))
    except ValueError:
        raise HTTPException(400, f"{label}: expected {_EXPECTED}.") from None
