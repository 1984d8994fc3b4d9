"""The names and types of the envelope and of every documented kind, as the samples show them."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

from relay.core.event import KINDS
from relay.core.sample_events import series

_FORM_FIELDS = ("data", "fields")
TYPES: Mapping[type, str] = {
    str: "text",
    bool: "true or false",
    int: "number",
    float: "number",
    list: "list",
}


class Shape(NamedTuple):
    """The known members of an object, or the known types of another value; both may be unknown."""

    path: str = ""
    members: Mapping[str, Any] | None = None
    types: frozenset[str] = frozenset()


UNKNOWN = Shape()
FLAG = Shape("a comparison", types=frozenset({"true or false"}))


@cache
def envelope() -> Shape:
    """Return the shape of all documented events together."""
    documents = [event.document() for kind in KINDS for event in series(kind)]
    return _shape_of(documents, ())


def _shape_of(values: list[Any], names: tuple[str, ...]) -> Shape:
    path = ".".join(names)
    objects = [value for value in values if isinstance(value, dict)]
    if names == _FORM_FIELDS:
        return Shape(path)
    if objects:
        keys = dict.fromkeys(key for each in objects for key in each)
        members = {
            key: _shape_of([each[key] for each in objects if key in each], (*names, key))
            for key in keys
        }
        return Shape(path, members)
    return Shape(path, types=frozenset(TYPES.get(type(value), "nothing") for value in values))


def paths(shape: Shape) -> Iterator[str]:
    """Yield the path of every member, at every level."""
    for member in (shape.members or {}).values():
        yield member.path
        yield from paths(member)
