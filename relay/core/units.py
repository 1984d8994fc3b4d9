"""Formats numbers, durations, ages and sizes for people: on the page, in commands and findings.

Whole units only ever round down, so that one figure reads alike in a long and in a short form.
`tests/admin/figures` holds each figure against every other place that shows it.
"""

_TIMES = ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB")


def number(count: float) -> str:
    """Format a count: `1,088`."""
    return f"{count:,.0f}"


def span(ms: float) -> str:
    """Format a duration in whole units of the largest unit that fits, as suits an age."""
    seconds = int(ms) // 1000
    for length, name, _, _ in _TIMES:
        if seconds >= length:
            return f"{seconds // length:,} {name}"
    return f"{seconds} s"


def duration(ms: float) -> str:
    """Format how long something takes or took: `84 ms`, `1.2 s`, `44 s`, `4 min 11 s`."""
    ms = int(ms)
    if ms < 1000:
        return f"{ms} ms"
    if ms < 10_000:
        return f"{ms // 1000}.{ms // 100 % 10} s"
    seconds = ms // 1000
    for length, name, part, part_name in _TIMES:
        if seconds >= length:
            rest = seconds % length // part
            return f"{seconds // length:,} {name}" + (f" {rest} {part_name}" if rest else "")
    return f"{seconds} s"


def deviation(seconds: float) -> str:
    """Format how far a clock is ahead of another: `+312 ms`, `-1.2 s`."""
    return f"{'-' if seconds < 0 else '+'}{duration(abs(seconds) * 1000)}"


def relative(ms: int, now_ms: int) -> str:
    """Format a time relative to now: `now`, `3 min ago`, `in 2 h`."""
    if abs(now_ms - ms) < 1000:
        return "now"
    return f"{span(now_ms - ms)} ago" if ms < now_ms else f"in {span(ms - now_ms)}"


def size(count: float) -> str:
    """Format a number of bytes in the largest unit that fits."""
    for unit in _SIZES[:-1]:
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} {_SIZES[-1]}"
