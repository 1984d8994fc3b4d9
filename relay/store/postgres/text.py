"""Text from strangers, in a form that PostgreSQL stores."""

import codecs
import re

_REFUSED = re.compile("[\0\ud800-\udfff]")
_UNIVERSAL = frozenset({"UTF8", "SQL_ASCII"})
"""Encodings of databases that hold any text; SQL_ASCII takes the bytes as they come."""


def storable(text: str) -> str:
    """Replace NUL and lone surrogates, which PostgreSQL refuses, by U+FFFD."""
    return _REFUSED.sub("\ufffd", text)


class Encoding:
    """The encoding of a database, and the text that it can hold."""

    def __init__(self, name: str) -> None:
        """`name` is the server's."""
        self.name = name
        self.is_universal = name in _UNIVERSAL
        try:
            self._codec = codecs.lookup(name.replace("WIN", "cp"))
        except LookupError:
            # Part of every encoding that a database can have.
            self._codec = codecs.lookup("ascii")

    def holds(self, *texts: str) -> bool:
        """Whether it can hold all of these."""
        return self.is_universal or all(self.fit(text) == text for text in texts)

    def fit(self, text: str) -> str:
        """Put a question mark in place of each character that it cannot hold."""
        return self._codec.decode(self._codec.encode(text, "replace")[0])[0]
