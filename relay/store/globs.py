"""Globs of kinds as regular expressions, for PostgreSQL and for Python."""

import re
from collections.abc import Iterable, Iterator

_SET = re.compile(r"\[([!^]?)(\]?[^\]]*)\]", re.DOTALL)
_RANGE = re.compile(r"(.)-(.)|(.)", re.DOTALL)
_NOTHING = "(?=a)b"
_ANY = "(?:.|\n)"


def regular_expression(glob: str) -> str:
    """Return an expression for Python's `fullmatch` and for PostgreSQL's `~`.

    In PostgreSQL, ranges of characters need the collation C.
    """
    return f"^{''.join(_parts(glob))}$"


def matching(glob: str, texts: Iterable[str]) -> list[str]:
    """Return the texts that a glob matches."""
    matches = re.compile(regular_expression(glob)).fullmatch
    return [each for each in texts if matches(each)]


def _parts(glob: str) -> Iterator[str]:
    place = 0
    while place < len(glob):
        match = _SET.match(glob, place)
        if match is not None:
            yield _one_of(match[2], negated=bool(match[1]))
            place = match.end()
        else:
            wildcard = {"*": f"{_ANY}*", "?": _ANY, "[": _NOTHING}.get(glob[place])
            yield wildcard or re.escape(glob[place])
            place += 1


def _one_of(characters: str, *, negated: bool) -> str:
    items = "".join(
        f"{re.escape(first or single)}-{re.escape(last or single)}"
        for first, last, single in _RANGE.findall(characters)
        if first <= last
    )
    if not items:
        return _ANY if negated else _NOTHING
    return f"[{'^' if negated else ''}{items}]"
