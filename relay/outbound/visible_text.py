"""Texts of strangers on one visible line, in Slack's messages and in templates alike."""

import re
import unicodedata

_INVISIBLE_CATEGORIES = frozenset({"Cc", "Cf", "Cs"})
_INVISIBLE_LETTERS = frozenset("\u034f\u115f\u1160\u2800\u3164\uffa0")
_PUNCTUATION = re.compile(r"([!-/:-@\[-`{-~])")


def one_line(text: str) -> str:
    """Make one line: white space becomes single blanks, and invisible characters are removed."""
    line = " ".join(text.split())
    if line.isprintable() and _INVISIBLE_LETTERS.isdisjoint(line):
        return line
    return " ".join("".join(filter(_is_visible, line)).split())


def in_markdown(text: str) -> str:
    """Make one line that Markdown shows as it is: any ASCII punctuation is escaped."""
    return _PUNCTUATION.sub(r"\\\1", one_line(text))


def _is_visible(char: str) -> bool:
    if char in _INVISIBLE_LETTERS:
        return False
    # `isprintable` is the faster test, but false for letters that Python does not know yet.
    return char.isprintable() or unicodedata.category(char) not in _INVISIBLE_CATEGORIES
