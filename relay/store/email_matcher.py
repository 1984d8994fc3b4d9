"""Search for a whole e-mail address in bytes, in any of its usual encodings."""

import html
import json
import re
from collections.abc import Iterator
from functools import cached_property
from urllib.parse import unquote

from relay.core import addresses, foreign_json
from relay.core.event import folded

LEVELS = 3
"""Levels of JSON nested in JSON strings that are unescaped."""

_ESCAPE = re.compile(
    r"(?:\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[0-9a-fA-F]{4}|\\."
)
_PLAIN = re.compile(r"[a-z0-9]+")
_JOINS_LOCAL = "._+'-"
_JOINS_DOMAIN = ".-"


class EmailMatcher:
    """Finds one person's e-mail address, case-insensitively.

    A longer address that contains this one is another person's.
    """

    def __init__(self, text: str, *, number: int | None = None) -> None:
        """`number` identifies the person in tables without addresses."""
        self.folded = folded(text.strip())
        self.number = number

    @cached_property
    def longest_word(self) -> str | None:
        """The longest run of letters and digits, which encoders leave as it is.

        A content without it does not contain the address. None if the address has no such run.
        """
        return max(_PLAIN.findall(self.folded), key=len, default=None)

    def stands_in(self, content: bytes | str | None) -> bool:
        """Whether the content contains the address, plain or escaped as in JSON, URLs or HTML."""
        return content is not None and any(self._is_in(text) for text in _readings(content))

    def _is_in(self, text: str) -> bool:
        start = text.find(self.folded)
        while start >= 0:
            if _begins(text, start) and _ends(text, start + len(self.folded)):
                return True
            start = text.find(self.folded, start + 1)
        return False


def _begins(text: str, start: int) -> bool:
    """Whether no address can begin before `start`: dots and quotes alone do not begin one."""
    place = start - 1
    while place >= 0 and text[place] in _JOINS_LOCAL:
        if text[place] == "_" or text[max(0, place - 1) : place + 1] == "..":
            return text[place] == "."
        place -= 1
    return place < 0 or not text[place].isalnum()


def _ends(text: str, end: int) -> bool:
    """Whether the domain ends there; a full stop after it belongs to the sentence."""
    place = end
    while place < len(text) and text[place] in _JOINS_DOMAIN:
        if text[place : place + 2] == "..":
            return True
        place += 1
    return place == len(text) or not text[place].isalnum()


def _readings(content: bytes | str) -> Iterator[str]:
    for text in _unescaped(_decoded(content)):
        plain = folded(text)
        yield plain
        if "%" in plain:
            yield folded(unquote(text, errors="replace"))
        if "&" in plain:
            yield folded(html.unescape(text))
        spelled = addresses.plain(plain)
        if spelled != plain:
            yield spelled


def _decoded(content: bytes | str) -> str:
    if isinstance(content, str):
        return content
    # Without NUL bytes, an ASCII address in UTF-16 or UTF-32 is plain ASCII.
    return content.replace(b"\0", b"").decode(errors="replace")


def _unescaped(text: str) -> Iterator[str]:
    """Yield the text, unless it is JSON with escapes, and then its unescaped levels."""
    if "\\" not in text or not _is_json(text):
        yield text
    for _ in range(LEVELS):
        if "\\" not in text:
            return
        text = _ESCAPE.sub(_character, text)
        yield text


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _character(escape: re.Match[str]) -> str:
    try:
        # Half of a character as it is shown, and so as an operator writes it.
        return foreign_json.whole(json.loads(f'"{escape[0]}"'))
    except ValueError:  # not an escape of JSON
        return escape[0][1]
