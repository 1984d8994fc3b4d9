"""Formats durations and sizes for people."""

_TIMES = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB")


def span(ms: float) -> str:
    """Format a duration in whole units of the largest unit that fits."""
    seconds = int(ms) // 1000
    number, unit = next(
        ((seconds // size, name) for size, name in _TIMES if seconds >= size), (0, "s")
    )
    return f"{number} {unit}"


def size(count: float) -> str:
    """Format a number of bytes in the largest unit that fits."""
    for unit in _SIZES[:-1]:
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} {_SIZES[-1]}"
