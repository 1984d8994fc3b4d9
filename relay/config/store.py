"""Reads `[store]`, whose keys are those of the engine that `type` names."""

from typing import Any

from relay.config.table import Findings, KeyPath, Table, TableReader, describe
from relay.store import StoreSettings, engines

_INSTEAD = {
    "path": "set dsn and schema",
    "min_free": "watch the free space where the database is",
    "dsn": "set path",
    "schema": "set path",
    "pool_size": "remove it",
}
"""What to do about a key of the other engine."""


def read_store(raw: object, place: KeyPath, reader: TableReader, findings: Findings) -> Table:
    """Read the table; of an unknown type, only the keys of all engines can be checked."""
    type_ = raw.get("type", engines.DEFAULT) if isinstance(raw, dict) else engines.DEFAULT
    kind = engines.SETTINGS.get(type_) if isinstance(type_, str) else None
    if not isinstance(raw, dict) or kind is None:
        return _of_no_type(raw, type_, place, reader, findings)
    foreign = _foreign(raw, kind)
    for key, other in foreign.items():
        message = f'is a key of type = "{other}", not of "{type_}": {_INSTEAD[key]}'
        findings.fault(place.key(key), message)
    own = {key: value for key, value in raw.items() if key not in foreign}
    table = reader.table(own, kind, place)
    _check(table, type_, findings)
    return table


def _of_no_type(
    raw: object, type_: object, place: KeyPath, reader: TableReader, findings: Findings
) -> Table:
    if isinstance(raw, dict):
        raw = {key: value for key, value in raw.items() if key in StoreSettings.__struct_fields__}
        if isinstance(type_, str):
            known = " or ".join(f'"{name}"' for name in engines.SETTINGS)
            findings.fault(place.key("type"), f"expected {known}, found {describe(type_)}")
    return reader.table(raw, StoreSettings, place)


def _foreign(raw: dict[str, Any], kind: type[StoreSettings]) -> dict[str, str]:
    """Return the keys that only another engine has, with its type."""
    return {
        key: type_
        for type_, other in engines.SETTINGS.items()
        for key in raw
        if key in other.__struct_fields__ and key not in kind.__struct_fields__
    }


def _check(table: Table, type_: str, findings: Findings) -> None:
    """Note the faults that the engine finds, and a client library that is missing."""
    try:
        engine = engines.load(type_)
    except ValueError as error:
        findings.fault(table.at("type"), str(error))
        return
    if table.whole:
        findings.faults.extend(engine.faults(table.build()))
