r"""E-mail addresses in any text, however spelled: one pattern for the page and the store.

It finds too much rather than too little: what looks like an address is hidden from viewers, and
replaced by a digest in the audit log.
"""

import re

_AT = (
    "[@\uff20\ufe6b]"
    "|%(?:25)*40"
    r"|\\{1,4}(?:u00|x)40"
    "|&(?:amp;){0,4}(?:#0{0,8}64|#[xX]0{0,8}40|commat);"
    # In quoted-printable; an amount follows a sign of equality, too.
    "|=40(?=[^\\W\\d_])"
)
AT = re.compile(_AT)
"""The sign of an address, also as URLs, JSON, HTML and MIME spell it."""

_OUTSIDE = r"\s@\uff20\ufe6b<>\"'(),;:\[\]{}"
_SIGN = rf"(?:[^{_OUTSIDE}%\\&=]|(?!{_AT})[%\\&=])"
_LOCAL = rf"(?:{_SIGN}|(?<=\w)'(?=\w))"
# A part is tried from its beginning only, because a stranger's text of 20 kB without any space
# would hold up the whole process for seconds. Nothing is possessive: Python 3.11.2 would not match.
ADDRESS = re.compile(
    rf"(?:(?<![^{_OUTSIDE}])(?<!\w'){_LOCAL}+|\"[^\"]{{1,64}}\")"
    rf"(?:{_AT})(?:\[[^\s\[\]]{{1,64}}\]|{_SIGN}+(?<!\.))"
)
"""A whole address; a full stop behind it belongs to the sentence."""


def plain(address: str) -> str:
    """Return an address with its sign spelled as `@`."""
    return AT.sub("@", address)
