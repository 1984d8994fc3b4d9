"""Wording of the findings about a rule; they never repeat an address from it."""

import re

from relay.config.event_shapes import envelope, paths
from relay.core.event import KINDS, MILESTONES
from relay.core.setting_errors import suggestion

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SHOWN = re.compile(r"[A-Za-z0-9_.%:*-]{1,40}")
"""Texts that a message repeats; anything else could be an address."""

_KEYWORDS = ("true", "false", "null")
_ALIASES = {
    "type": "event",
    "kind": "event",
    "eventType": "event",
    "event_type": "event",
    "created_at": "createdAt",
    "payload": "data",
}
_OF_THE_RELAY = {
    "source": "; the sources of a sink are its key `sources`",
    "reconstructed": "; a sink takes reconstructed events by its key `reconstructed`",
}
"""Names that templates have, and rules do not."""


def is_text(name: str) -> bool:
    """Whether a name can only be meant as a fixed value."""
    known = (*KINDS, *MILESTONES, *_KEYWORDS)
    return name in known or _NAME.fullmatch(name) is None


def read_as_name(text: str, *, is_number: bool = False) -> str:
    """Say how to write a fixed value that is read as a name."""
    if text in _KEYWORDS or (is_number and text.isdigit()):
        return f"{text} is read as a name, which no event has: write `{text}` in backticks"
    if _SHOWN.fullmatch(text) is None:
        return "a text without single quotes is read as a name, which no event has: write 'text'"
    return f"{text} is read as a name, which no event has: write '{text}' in single quotes"


def no_name(name: str) -> str:
    """Say which name may be meant by one that no event has."""
    longer = [path for path in paths(envelope()) if path.rpartition(".")[2] == name]
    if name in _OF_THE_RELAY:
        hint = _OF_THE_RELAY[name]
    elif name in _ALIASES:
        hint = f"; did you mean {_ALIASES[name]}?"
    elif longer:
        hint = f"; did you mean {' or '.join(longer)}?"
    else:
        members = envelope().members or {}
        hint = suggestion(name, members) or f"; its names are {', '.join(members)}"
    return f"no event has the name {plain(name)}{hint}"


def shown(text: str) -> str:
    """Return a text in single quotes, or a word for one that must not be repeated."""
    return f"'{text}'" if _SHOWN.fullmatch(text) else "a text"


def plain(name: str) -> str:
    """Return a name, or a sign for one that must not be repeated."""
    return name if _SHOWN.fullmatch(name) else '"..."'


def article(type_: str) -> str:
    """Return the name of a type with its article."""
    return type_ if type_ in {"true or false", "nothing"} else f"a {type_}"


def in_its_type(value: object, types: frozenset[str]) -> str:
    """Say how to write a value in one of these types, if that is possible."""
    if isinstance(value, str):
        is_number = "number" in types and value.isdigit()
        is_flag = "true or false" in types and value in _KEYWORDS
        return f": write `{value}` in backticks" if is_number or is_flag else ""
    return f": write '{value}' in single quotes" if "text" in types else ""
