"""Lengths of time and sizes as people read them."""

_TIMES = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB")


def span(ms: float) -> str:
    """Return a length of time in whole units of the largest that fits."""
    seconds = int(ms) // 1000
    number, unit = next(
        ((seconds // size, name) for size, name in _TIMES if seconds >= size), (0, "s")
    )
    return f"{number} {unit}"


def size(count: float) -> str:
    """Return a number of bytes in its largest unit."""
    for unit in _SIZES[:-1]:
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} {_SIZES[-1]}"
