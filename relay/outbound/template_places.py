"""What a value becomes where it lands, in the text of a JSON document and in a URL.

The author's literal text is the structure, and no value can change it.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from urllib.parse import quote

import orjson

from relay.core.errors import InvalidTemplate
from relay.outbound.template import Pieces, Value

_JSON_MARKS = re.compile(r'\\.?|"', re.DOTALL)
_OPEN_ESCAPE = re.compile(r"%[0-9A-Fa-f]?\Z")

_SLASH = re.compile(r"[/\\]")
_DOTS = frozenset({".", ".."})
"""Segments that clients and servers fold into another path, escaped or not.

Some servers decode %2F before they fold, so that such a segment within a value counts as well.
"""


def in_json(pieces: Pieces) -> Iterator[str]:
    """Escape values in quotes; any other has to be a whole JSON value.

    Raises InvalidTemplate for one that is not. A text is a number or a flag if it reads as one, but
    never an object or a list that holds something: an event would name its members.
    """
    is_quoted = is_escaped = False
    for piece in pieces:
        if isinstance(piece, Value):
            if is_escaped:
                raise InvalidTemplate("a value stands behind a backslash, which would escape it")
            yield orjson.dumps(piece)[1:-1].decode() if is_quoted else f" {_json_value(piece)} "
            continue
        start, is_escaped = int(is_escaped), False
        for mark in _JSON_MARKS.finditer(piece, start):
            is_quoted ^= mark[0] == '"'
            is_escaped = mark[0] == "\\"
        yield piece


def _json_value(value: Value) -> str:
    if value.json is not None:
        return value.json
    with suppress(ValueError):
        read = orjson.loads(value.encode())
        if not (read and isinstance(read, dict | list)):
            return value
    raise InvalidTemplate(
        "a text stands outside quotes, where JSON needs a value: put quotes around it, or write "
        "| tojson; commas and brackets belong into the literal text"
    )


def in_url(pieces: Pieces) -> Iterator[str]:
    """Percent-encode every value as a whole: none parts a path or a query.

    Raises InvalidTemplate for a value that would lead to another path.
    """
    is_path, before = True, ""
    for piece in pieces:
        if isinstance(piece, Value):
            if is_path and (not piece or not _DOTS.isdisjoint(_SLASH.split(piece))):
                raise InvalidTemplate("nothing, . or .. would stand in the path")
            if _OPEN_ESCAPE.search(before[-2:]):
                raise InvalidTemplate("a value stands within a percent-encoded character")
            before = quote(piece, safe="")
            yield before
        else:
            is_path = is_path and "?" not in piece
            before = piece
            yield piece
