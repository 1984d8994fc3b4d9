"""How large the result of an operation in a template will be, before it is made.

The size counts characters or items. Where the work grows faster than the result, it counts work:
64 copied characters for one.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from string import Formatter
from typing import Any

Growth = Callable[..., int]
"""Takes what the operation takes; a wrong call raises as the operation does."""

_COPIED = 64
_DIGIT_WORK = 1000
"""A power of ten takes more work than it has digits."""

_WORD_WORK = 100

_PARTS = re.compile(r"\.|\[")
_DIGITS = re.compile("[0-9]+")
_CONVERSION = re.compile(
    r"%%|%(?:\([^()%]{0,255}\))?[#0\- +]*(?P<width>[0-9]+|\*)?(?:\.(?P<precision>[0-9]+|\*))?"
)


def size(value: object) -> int:
    """Return the length of a value as text."""
    return len(value if isinstance(value, str | bytes) else str(value))


def added(left: Any, right: Any) -> int:
    """Two texts or lists, one after the other; numbers do not grow."""
    return len(left) + len(right) if hasattr(left, "__len__") else 0


def concatenated(*parts: object) -> int:
    return sum(map(size, parts))


def percent(text: str, values: Any) -> int:
    """The operator `%` on a text."""
    if isinstance(values, Mapping):
        arguments = list(values.values())
    else:
        arguments = list(values) if isinstance(values, tuple) else [values]
    conversions = [each for each in _CONVERSION.finditer(text) if each[0] != "%%"]
    filled = len(conversions) * max(map(size, arguments), default=0)
    return len(text) + filled + _widths(conversions, arguments)


def _widths(conversions: Sequence[re.Match[str]], arguments: Sequence[Any]) -> int:
    following, total = iter(arguments), 0
    for conversion in conversions:
        for width in conversion.group("width", "precision"):
            total += abs(next(following, 0)) if width == "*" else int(width or 0)
        next(following, None)
    return total


class _Measure(Formatter):
    """Measures a text's fields, widths from values among them, and formats none."""

    total = 0

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> tuple[Any, str]:
        first, *others = _PARTS.split(field_name)
        value = self.get_value(int(first) if first.isdecimal() else first, args, kwargs)
        for part in others:
            value = _item(value, part.removesuffix("]"))
        return value, first

    def format_field(self, value: Any, format_spec: str) -> str:
        self.total += size(value) + sum(map(int, _DIGITS.findall(format_spec)))
        # Within the specification of another field it is a width.
        return str(value)[:40]


def _item(holder: Any, name: str) -> Any:
    try:
        return holder[int(name) if name.isdecimal() else name]
    except (TypeError, LookupError):  # an attribute, which is no larger
        return holder


def _formatted(text: str, *arguments: Any, **named: Any) -> int:
    measure = _Measure()
    measure.vformat(text, arguments, named)
    return len(text) + measure.total


def _format_map(text: str, values: Mapping[str, Any]) -> int:
    return _formatted(text, **values)


def _format_filter(text: object, *arguments: Any, **named: Any) -> int:
    return percent(str(text), named or arguments)


def _padded(text: object, width: int = 80, *_: str) -> int:
    return max(size(text), width)


def _expanded(text: Any, tabsize: int = 8) -> int:
    tabs: int = text.count("\t" if isinstance(text, str) else b"\t")
    return len(text) + tabs * tabsize


def _replaced(text: Any, old: Any, new: Any, *_: object, **__: object) -> int:
    times: int = text.count(old)
    return len(text) + times * len(new)


def _replace_filter(text: object, old: object, new: object, *_: object, **__: object) -> int:
    return _replaced(str(text), str(old), str(new))


def _joined(separator: object, parts: Sequence[object]) -> int:
    return sum(map(size, parts)) + len(parts) * size(separator)


def _join_filter(parts: Sequence[object], d: object = "", *_: object, **__: object) -> int:
    return _joined(d, parts)


def _translated(text: Any, table: Any) -> int:
    longest = max(map(size, table.values()), default=1) if isinstance(table, Mapping) else 1
    return len(text) * longest


def _indented(text: object, width: int | str = 4, *_: object, **__: object) -> int:
    lines = str(text).count("\n") + 1
    return size(text) + lines * (len(width) if isinstance(width, str) else width)


def _wrapped(
    text: object,
    width: int = 79,
    _: object = None,
    wrapstring: str | None = None,
    *__: object,
    **___: object,
) -> int:
    words = str(text).split()
    lines = len(words) + size(text) // max(width, 1)
    # Each line that is cut off a long word copies the rest of it.
    copied = max(map(len, words), default=0) ** 2 // (2 * max(width, 1))
    return size(text) + lines * size(wrapstring or "\n") + copied // _COPIED


def _stripped(text: object) -> int:
    # Each tag copies the rest of the text.
    return size(text) + str(text).count("<") * size(text) // _COPIED


def _rounded(_: object, precision: int = 0, *__: object, **___: object) -> int:
    return abs(precision) * _DIGIT_WORK


def _batched(_: object, linecount: int, *__: object, **___: object) -> int:
    return linecount


def _sliced(_: object, slices: int, *__: object, **___: object) -> int:
    return slices


def _summed(items: Sequence[object], _: object = None, start: object = 0, **__: object) -> int:
    # Each sum of two lists copies both.
    return len(items) ** 2 // _COPIED if hasattr(start, "__len__") else 0


def _bytes_of(_: int, length: int = 1, *__: object, **___: object) -> int:
    return length


def lipsum(n: int = 5, html: object = None, min: int = 20, max: int = 100) -> int:  # noqa: A002, ARG001
    """The function of that name, whose work is in its words."""
    return n * max * _WORD_WORK


METHODS: Mapping[str, Growth] = {
    "center": _padded,
    "expandtabs": _expanded,
    "format": _formatted,
    "format_map": _format_map,
    "join": _joined,
    "ljust": _padded,
    "replace": _replaced,
    "rjust": _padded,
    "to_bytes": _bytes_of,
    "translate": _translated,
    "zfill": _padded,
}
"""Methods of texts and numbers whose results can be larger than what they work on."""

FILTERS: Mapping[str, Growth] = {
    "batch": _batched,
    "center": _padded,
    "format": _format_filter,
    "indent": _indented,
    "join": _join_filter,
    "replace": _replace_filter,
    "round": _rounded,
    "slice": _sliced,
    "striptags": _stripped,
    "sum": _summed,
    "wordwrap": _wrapped,
}

OF_ITEMS = frozenset({"join", "sum"})
"""Those that work on items, which may come one by one."""
