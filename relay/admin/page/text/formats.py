"""Times, shares and names as the page writes them, beside those of `core/units.py`."""

import unicodedata
from datetime import UTC, datetime

from relay.core.sink_status import rate
from relay.core.units import deviation, duration, number, relative, size

_SHOWN = {"\n", "\t"}
MIDDLE = "…"


def iso(ms: int) -> str:
    """Format a time exactly: `2026-11-22T14:05:02.131Z`."""
    return _utc(ms).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def utc(ms: int) -> str:
    """Format a time for people: `2026-11-22 14:05:02.131 UTC`."""
    return iso(ms).replace("T", " ").removesuffix("Z") + " UTC"


def clock(ms: int) -> str:
    """Format the time of day in UTC: `14:05:02`."""
    return _utc(ms).strftime("%H:%M:%S")


def minute(ms: int) -> str:
    return _utc(ms).strftime("%H:%M")


def day(ms: int) -> str:
    return _utc(ms).strftime("%Y-%m-%d")


def offset(ms: int) -> str:
    """Format a time after another: `+0.018 s`, `+4 min 22 s`."""
    sign, length = ("+", ms) if ms >= 0 else ("\N{MINUS SIGN}", -ms)
    return sign + (f"{length / 1000:.3f} s" if length < 60_000 else duration(length))


def percent(share: float) -> str:
    """Format a share: `38 %`, `4.2 %`; neither 0 % nor 100 % unless it is exactly that."""
    if 0 < share < 0.0995:
        return "<0.1 %" if share < 0.0005 else f"{100 * share:.1f} %"
    rounded = round(100 * share)
    return ">99 %" if rounded == 100 and share < 1 else f"{rounded:,} %"


def capitalize_first(text: str) -> str:
    """Begin a sentence; what follows keeps its case."""
    return text[:1].upper() + text[1:]


def shortened(text: str, width: int = 24) -> str:
    """Leave out the middle of a long id."""
    half = (width - 1) // 2
    return text if len(text) <= width else f"{text[:half]}{MIDDLE}{text[-half:]}"


def visible(text: object) -> str:
    """Replace characters that hide or reorder text by their code points."""
    shown = str(text)
    # Most texts have none, and a text of 64 KiB has few different characters.
    return shown if shown.isprintable() else shown.translate(_marks(shown))


def _marks(text: str) -> dict[int, str]:
    return {
        ord(each): f"[U+{ord(each):04X}]"
        for each in set(text) - _SHOWN
        if unicodedata.category(each) in ("Cc", "Cf", "Cs", "Co", "Cn")
    }


FILTERS = {
    "capitalize_first": capitalize_first,
    "clock": clock,
    "day": day,
    "deviation": deviation,
    "duration": duration,
    "iso": iso,
    "minute": minute,
    "number": number,
    "offset": offset,
    "percent": percent,
    "rate": rate,
    "relative": relative,
    "shortened": shortened,
    "size": size,
    "utc": utc,
    "visible": visible,
}
"""For templates."""


def _utc(ms: int) -> datetime:
    # Beyond the years that a datetime has, which a hostile sender's clock can name.
    return datetime.fromtimestamp(min(max(ms, 0), 253_402_300_799_999) / 1000, UTC)
