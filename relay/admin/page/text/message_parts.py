"""A sink's message, split into parts that a page can show."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from relay.admin.page.text.json_text import Shown, plain, pretty

SHORT_MAX = 100
"""Characters of a value, such as a topic, without a heading of its own."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a message: a text, or pairs of names and texts; short values have no name."""

    name: str
    pairs: Sequence[tuple[str, str]] = ()
    text: Shown | None = None


def parts_of(message: Mapping[str, Any]) -> list[Part]:
    """Split a message: short values first, then the parts with a heading."""
    short, rest = [], []
    for name, value in message.items():
        if _is_table(value):
            rest.append(Part(name=name, pairs=[(key, _text(each)) for key, each in value.items()]))
        elif _is_short(text := _text(value)):
            short.append((name, text))
        else:
            rest.append(Part(name=name, text=pretty(text) or plain(text)))
    return [Part(name="", pairs=short), *rest] if short else rest


def _is_table(value: object) -> bool:
    return isinstance(value, Mapping) and not any(
        isinstance(each, list | Mapping) for each in value.values()
    )


def _is_short(text: str) -> bool:
    return len(text) <= SHORT_MAX and not text.startswith(("{", "["))


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
