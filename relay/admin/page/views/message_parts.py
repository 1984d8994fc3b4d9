"""A sink's message, split into parts that a page can show."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

SHOWN_MAX = 64 * 1024
"""Characters of each part."""

SHORT_MAX = 60
"""Characters of a part without a heading of its own."""


class Part(NamedTuple):
    """A part of a message: a text, or pairs of names and texts; short values have no name."""

    name: str
    text: str
    pairs: Sequence[tuple[str, str]]
    is_cut: bool


def parts_of(message: Mapping[str, Any]) -> Iterator[Part]:
    """Split a message: short values first, then what has a heading of its own."""
    tables = {
        name: list(value.items())
        for name, value in message.items()
        if isinstance(value, Mapping) and all(isinstance(each, str) for each in value.values())
    }
    texts = {name: _text(value) for name, value in message.items() if name not in tables}
    short = [(name, text) for name, text in texts.items() if len(text) <= SHORT_MAX]
    if short:
        yield Part("", "", short, is_cut=False)
    for name in message:
        if table := tables.get(name):
            yield Part(name, "", table, is_cut=False)
        elif len(text := texts.get(name, "")) > SHORT_MAX:
            yield Part(name, text[:SHOWN_MAX], (), is_cut=len(text) > SHOWN_MAX)


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, indent=2, ensure_ascii=False)
