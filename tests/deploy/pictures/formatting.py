"""Values with their units, about as Grafana writes them."""

from collections.abc import Sequence

_SECONDS = ((86_400, "day"), (3600, "hour"), (60, "min"), (1, "s"), (1e-3, "ms"), (1e-6, "µs"))
_BYTES = tuple(
    (1024**power, unit) for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB"), (0, "B"))
)
_SHORT = ((1e6, " Mil"), (1e3, " K"), (1, ""))


def written(value: float, unit: str, decimals: int | None) -> str:
    match unit:
        case "s":
            return _scaled(value, _SECONDS)
        case "dtdurations":
            return _in_words(round(value), decimals or 0)
        case "dthms":
            minutes, seconds = divmod(round(value), 60)
            return f"{minutes // 60:02}:{minutes % 60:02}:{seconds:02}"
        case "bytes":
            return _scaled(value, _BYTES)
        case "short":
            return _scaled(value, _SHORT).replace("  ", " ")
        case "percentunit":
            return f"{100 * value:.{1 if decimals is None else decimals}f}%"
        case "locale":
            return f"{value:,.{decimals or 0}f}"
        case "ops":
            return f"{value:.3g} ops/s"
    return f"{value:.{decimals}f}" if decimals is not None else f"{value:.4g}"


def ago(seconds: float) -> str:
    """Time since an event, in words."""
    for size, word in ((86_400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= size:
            count = round(seconds / size)
            return f"{count} {word}{'s' * (count > 1)} ago"
    return "a few seconds ago"


def _in_words(seconds: int, more: int) -> str:
    """Write the largest part, and some more of the parts below it."""
    parts: list[str] = []
    for size, word in ((86_400, "day"), (3600, "hour"), (60, "minute"), (1, "second")):
        count, seconds = divmod(seconds, size)
        if count or parts:
            parts.append(f"{count} {word}{'s' * (count != 1)}")
    return ", ".join(parts[: more + 1]) or "0 seconds"


def _scaled(value: float, sizes: Sequence[tuple[float, str]]) -> str:
    if value == 0:
        return f"0 {sizes[-1][1] if sizes is not _SECONDS else 's'}".strip()
    size, word = next((each for each in sizes if abs(value) >= each[0]), sizes[-1])
    return f"{value / size:.3g} {word}".strip()
