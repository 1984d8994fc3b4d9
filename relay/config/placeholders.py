"""What stands in for values that could not be read, so that the rest of a sink is judged too.

A sink may hold one key against another: a password would seem to lack its user, a template to fail
on what never comes. So there are two sets, as unlike as can be, and only what is wrong with both
is a fault of the values that are there.
"""

from collections.abc import Iterator
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec.structs import FieldInfo

from relay.config.table import FAULTY, Place, Table, bare
from relay.core.config_values import Address, Secret
from relay.core.sink import SinkSettings

_PLAIN = SinkSettings(name="unnamed", type="", events=(), when="`false`")
"""Of the keys that all sinks have; no event comes, so that no template fails on one."""

_TEXT = "stand-in"
"""No URL, no file and no rule; what a sink says of it is not told."""

_OF_TYPE: dict[Any, Any] = {str: _TEXT, Secret: Secret(_TEXT), Address: Address(f"{_TEXT}:1")}


def sets(table: Table) -> tuple[dict[str, Any], ...]:
    """By key, for the faulty ones; no set at all where nothing can stand in for one."""
    fields = {field.name: field for field in msgspec.structs.fields(table.kind)}
    faulty = [(fields[name], table.values[name]) for name in table.faulty()]
    try:
        left_out = {field.name: _left_out(field, value) for field, value in faulty}
        given = {field.name: _given(field, value) for field, value in faulty}
    except LookupError:
        return ()
    return (left_out, given) if faulty else ({},)


def touches(table: Table, place: Place) -> bool:
    """Whether a fault at this place would be one of a stand-in."""
    return any(
        _is_within(place.text, each.text) or _is_within(each.text, place.text)
        for name in table.faulty()
        for each in _faulty(table.values[name], table.at(name))
    )


def _is_within(inner: str, outer: str) -> bool:
    return inner == outer or inner.startswith((f"{outer}.", f"{outer}["))


def _faulty(value: Any, place: Place) -> Iterator[Place]:
    """Where exactly the faults of a value are."""
    match value:
        case dict():
            for key, item in value.items():
                yield from _faulty(item, place.key(key))
        case tuple() | list():
            for index, item in enumerate(value):
                yield from _faulty(item, place.item(index))
        case _ if value is FAULTY or (isinstance(value, Table) and not value.whole):
            yield place


def _left_out(field: FieldInfo, value: Any) -> Any:
    """As if the key were not there, but a list or a table keeps its good parts."""
    if field.name in SinkSettings.__struct_fields__ or value is FAULTY or isinstance(value, Table):
        return _given(field, value) if field.required else _default(field)
    return _given(field, value)


def _given(field: FieldInfo, value: Any) -> Any:
    """As if something stood there; raises LookupError where nothing is known that could."""
    if field.name in SinkSettings.__struct_fields__:
        return getattr(_PLAIN, field.name)
    try:
        return _mended(value, bare(field.type))
    except LookupError:
        if field.required:
            raise
        return _default(field)


def _mended(value: Any, kind: Any) -> Any:
    arguments = get_args(kind)
    match value:
        case dict():
            return {key: _mended(item, arguments[1]) for key, item in value.items()}
        case tuple() | list():
            return type(value)(_mended(item, arguments[0]) for item in value)
    if value is not FAULTY and not isinstance(value, Table):
        return value
    if get_origin(kind) is Literal:
        return arguments[-1]
    kinds = arguments if get_origin(kind) in (Union, UnionType) else (kind,)
    known = [_OF_TYPE[each] for each in kinds if each in _OF_TYPE]
    return known[0]


def _default(field: FieldInfo) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default
