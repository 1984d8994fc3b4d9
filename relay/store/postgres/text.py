"""Text from strangers, in a form that PostgreSQL stores."""

import re

_REFUSED = re.compile("[\0\ud800-\udfff]")


def storable(text: str) -> str:
    """Replace NUL and lone surrogates, which PostgreSQL refuses, by U+FFFD."""
    return _REFUSED.sub("\ufffd", text)
