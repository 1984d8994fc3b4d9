"""Slack's text and block objects, which no value can break (slack.md, sections 4-6).

Texts come from strangers, unless a parameter says otherwise.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import orjson

from relay.outbound.template import Value
from relay.sinks.slack import escaping
from relay.sinks.slack.escaping import clean

Block = dict[str, Any]

HEADER_MAX = 150
TEXT_MAX = 3000
FIELD_MAX = 2000
FIELDS_MAX = 10
CONTEXT_MAX = 10
BLOCKS_MAX = 50
TOTAL_MAX = 12_000
"""All blocks together, counted as JSON; Slack's own limit is undocumented, about 13,200."""

LABEL_MAX = 75
LONG_VALUE = 60
"""A value longer than this gets the whole width instead of a cell."""

LIST_MAX = 50
"""Members of a list that are written out."""

NOTHING = "-"
"""Stands where Slack wants a text and there is none: an empty text fails the whole message."""

_MARKS = str.maketrans("", "", "*_~`")
_ADDRESS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._%+-]{0,63}@[A-Za-z0-9.-]{1,180}\.[A-Za-z]{2,24}")


class Fact(NamedTuple):
    """One line of a message: a bold label, and a text object as the value."""

    label: str
    value: Block


def describe(value: object, *, limit: int) -> str:
    """Any JSON value as one visible line; empty where there is nothing to say."""
    match value:
        case str():
            return clean(value, limit=limit)
        case None:
            return ""
        case list() | dict() if not value:  # an empty pattern would match every dict
            return ""
        case bool():
            return "yes" if value else "no"
        case list() if not any(isinstance(member, (list, dict)) for member in value):
            shown = (describe(member, limit=limit) for member in value[:LIST_MAX])
            return clean(", ".join(shown), limit=limit)
    return clean(_json(value), limit=limit)


def plain(text: str, *, limit: int = TEXT_MAX) -> Block:
    """A text in which nothing has a meaning: no mention, no link, no emoji code."""
    return {"type": "plain_text", "text": clean(text, limit=limit) or NOTHING, "emoji": False}


def mrkdwn(*pieces: str) -> Block:
    """A text of our own making; what a stranger wrote in it is a `Value`."""
    return {"type": "mrkdwn", "text": "".join(escaping.mrkdwn(pieces)), "verbatim": True}


def header(text: str) -> Block:
    """The large line at the top."""
    return {"type": "header", "text": plain(text, limit=HEADER_MAX)}


def section(text: Block) -> Block:
    """One text in full width."""
    return {"type": "section", "text": text}


def context(elements: Sequence[Block]) -> Block:
    """Small grey texts beside each other."""
    return {"type": "context", "elements": list(elements[:CONTEXT_MAX])}


def fact(label: str, value: object, *, limit: int = 500) -> list[Fact]:
    """A fact in plain text, or none where the value is empty."""
    text = describe(value, limit=limit)
    return [Fact(label, plain(text, limit=limit))] if text else []


def address(label: str, value: object) -> list[Fact]:
    """A fact that opens the mail program, where the value is an ordinary address."""
    text = describe(value, limit=254)
    if _ADDRESS.fullmatch(text) is None:
        return fact(label, value)
    return [Fact(label, mrkdwn(f"<mailto:{text}|{text}>"))]


def table(facts: Sequence[Fact]) -> list[Block]:
    """Labels on the left and values on the right; long values below, in full width."""
    cells = [fact for fact in facts if len(fact.value["text"]) <= LONG_VALUE or _is_ours(fact)]
    rows = FIELDS_MAX // 2
    blocks: list[Block] = [
        {
            "type": "section",
            "fields": [part for fact in cells[i : i + rows] for part in _pair(fact)],
        }
        for i in range(0, len(cells), rows)
    ]
    for fact in facts:
        if fact not in cells:
            blocks += _wide(fact)
    return blocks


def size(blocks: Sequence[Block]) -> int:
    """Characters as JSON: more than Slack can count."""
    return len(orjson.dumps(blocks).decode())


def room_for(fact: Fact) -> int:
    """What a fact adds to `size` at most."""
    return size(_wide(fact)) + 1


def _pair(fact: Fact) -> tuple[Block, Block]:
    # A label can be a form field's name: it must not end the bold type that it stands in.
    name = clean(fact.label.translate(_MARKS), limit=LABEL_MAX) or NOTHING
    return mrkdwn("*", Value(name), "*"), fact.value


def _wide(fact: Fact) -> list[Block]:
    return [section(text) for text in _pair(fact)]


def _is_ours(fact: Fact) -> bool:
    return bool(fact.value["type"] == "mrkdwn")


def _json(value: object) -> str:
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # nested more deeply than orjson writes, though it reads it
        return "(nested too deeply to show)"
