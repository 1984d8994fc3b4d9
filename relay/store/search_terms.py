"""The forms in which a word may be in the text of a body."""

import json
import re

from relay.core.foreign_json import REPLACEMENT

_SURROGATE = re.compile("[\ud800-\udfff]")


def word_forms(text: str) -> list[tuple[str, ...]]:
    """Return the forms of each word: as it is, and as JSON may escape it.

    A replacement is shown for half of a character, whichever it is, so that it fits anything.
    """
    words = text.replace(REPLACEMENT, " ").split()
    return [_forms(word) for word in dict.fromkeys(words)]


def _forms(word: str) -> tuple[str, ...]:
    escaped = json.dumps(word)[1:-1]
    return tuple(dict.fromkeys((word, escaped))) if _is_plain(word) else (escaped,)


def _is_plain(word: str) -> bool:
    """False for a lone surrogate, which UTF-8 cannot hold, and NUL, which JSON has to escape."""
    return "\0" not in word and not _SURROGATE.search(word)
