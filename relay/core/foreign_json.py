"""A lenient reader of senders' JSON: all of RFC 8259, with texts that can be encoded.

U+FFFD replaces half of a character, which JavaScript leaves where it cuts a text, and the largest
double a number beyond it. Both are replaced in a copy of the text, so that one parser decides
everything else.
"""

import math
import re
import sys
from typing import Any

import orjson

REPLACEMENT = "\ufffd"
"""Stands for half of a character wherever text is shown or sent as text."""

# An even number of backslashes in front are characters themselves.
_SURROGATES = re.compile(
    rb"(?<!\\)((?:\\\\)*)"
    rb"(?:(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)
_HALF = re.compile("[\ud800-\udfff]")
# A text without an end is one, too: it would be tried again from each quotation mark in it.
_TEXT_OR_NUMBER = re.compile(
    rb'"[^"\\]*(?:\\.[^"\\]*)*"?|((?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)', re.DOTALL
)
_LARGEST = repr(sys.float_info.max).encode()
_HUGE = re.compile(rb"[0-9]{200}|[eE]\+?[0-9]{3}")
"""In every text with a number beyond a double."""


def decode(body: bytes) -> Any:
    """Return the values of a JSON text; raises orjson.JSONDecodeError, a ValueError."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        repaired = without_halves(body)
        if _HUGE.search(repaired):
            repaired = _TEXT_OR_NUMBER.sub(_within_double, repaired)
        if repaired == body:
            raise
    return orjson.loads(repaired)


def without_halves(body: bytes) -> bytes:
    """Return JSON with a replacement for every escaped half of a character."""
    return _SURROGATES.sub(_replaced, body)


def whole(text: str) -> str:
    """Return a text that can be encoded: each half of a character is replaced."""
    return text if text.isascii() else _HALF.sub(REPLACEMENT, text)


def _replaced(match: re.Match[bytes]) -> bytes:
    return match[0] if match[2] else match[1] + rb"\ufffd"


def _within_double(match: re.Match[bytes]) -> bytes:
    return _LARGEST if math.isinf(float(match[1] or 0)) else match[0]
