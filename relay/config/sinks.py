"""Reads a `[[sink]]` table, compiles its route, and builds the sink once to check its settings."""

import re
from collections.abc import Mapping
from typing import Any

from relay import sinks
from relay.config.rule_checks import examine
from relay.config.table import FAULTY, Findings, KeyPath, Table, TableReader, build
from relay.core import setting_errors
from relay.core.clock import SystemClock
from relay.core.errors import InvalidRule, InvalidTemplate, UnreadableSetting
from relay.core.proxies import is_proxied
from relay.core.routing import Route
from relay.core.sink import SinkModule, SinkSettings

_KEYED = re.compile(
    r"""(([a-z][a-z0-9_]*)(?:[^":\s]|"(?:[^"\\]|\\.)*")*): (.+)""",
    re.DOTALL,
)
"""A sink's error about one of its keys: `url: expected ...`, `body."First name": ...`."""


def read_sink(
    raw: object, place: KeyPath, reader: TableReader, findings: Findings
) -> tuple[Table, Route | None]:
    """Read one table; the route is None if its rule is invalid."""
    module = _module(raw, place, findings)
    if module is None:
        table = _of_no_type(raw, place, reader)
    else:
        if isinstance(raw, dict) and not is_proxied(module.Settings):
            raw = _without_proxy(raw, place, findings)
        table = reader.table(raw, module.Settings, place)
        if table.whole:
            # Before the sink reads them, so that a change in between is detected later.
            for path in files(table.values):
                reader.references.note(path)
        _try_build(module, table, findings)
    return table, _route(table, findings)


def files(values: Mapping[str, Any]) -> list[str]:
    """Return the paths that the sink itself reads: the values of keys that end in `_file`."""
    return [
        value for key, value in values.items() if key.endswith("_file") and isinstance(value, str)
    ]


def _module(raw: object, place: KeyPath, findings: Findings) -> SinkModule | None:
    kind = raw.get("type") if isinstance(raw, dict) else None
    if not isinstance(kind, str):
        return None  # the reader reports it
    try:
        return sinks.load(kind)
    except ValueError as error:
        findings.fault(place.key("type"), str(error))
        return None


def _of_no_type(raw: object, place: KeyPath, reader: TableReader) -> Table:
    # The other keys depend on the type, so only the common ones can be checked.
    common = SinkSettings.__struct_fields__
    if isinstance(raw, dict):
        raw = {key: value for key, value in raw.items() if key in common}
    return reader.table(raw, SinkSettings, place)


def _without_proxy(raw: dict[str, Any], place: KeyPath, findings: Findings) -> dict[str, Any]:
    """Refuse a proxy where none could pass the protocol on, in words of its own."""
    if "proxy_url" in raw:
        findings.fault(
            place.key("proxy_url"),
            f"is for sinks that speak HTTP: one of type {raw['type']} goes through no proxy",
        )
    return {key: value for key, value in raw.items() if key != "proxy_url"}


class _ReadableSettings:
    """Settings of a partly unreadable table; reading such a value raises UnreadableSetting."""

    def __init__(self, table: Table) -> None:
        readable = table.values.keys() - table.faulty()
        self._values = {name: build(table.values[name]) for name in readable}

    def __getattr__(self, name: str) -> Any:
        if name not in self._values:
            raise UnreadableSetting(name)
        return self._values[name]


def _try_build(module: SinkModule, table: Table, findings: Findings) -> None:
    """Note all that the sink's own checks find in the readable values."""
    try:
        settings = _ReadableSettings(table) if table.faulty() else table.build()
        module.build(settings, SystemClock())
        for warning in settings.warnings():
            findings.warn(*_placed(warning, table))
    except* UnreadableSetting:
        pass
    except* (ValueError, InvalidTemplate) as group:
        for error in setting_errors.flatten(group):
            findings.fault(*_placed(str(error), table))


def _placed(text: str, table: Table) -> tuple[KeyPath, str]:
    keyed = _KEYED.fullmatch(text)
    if keyed is None or keyed[2] not in table.kind.__struct_fields__:
        return table.place, text
    return KeyPath(f"{table.place.text}.{keyed[1]}", ""), keyed[3]


def _route(table: Table, findings: Findings) -> Route | None:
    events = [glob for glob in table.get("events") or () if glob is not FAULTY]
    sources, when = table.get("sources"), table.get("when")
    try:
        route = Route(
            table.get("name") or "",
            events=events,
            sources=sources,
            when=when,
            ordered=table.get("ordered"),
            reconstructed=table.get("reconstructed") is True,
        )
        _examine(when, table, findings)
    except (InvalidRule, RecursionError) as error:
        cause = error if isinstance(error, InvalidRule) else "nested too deeply"
        findings.fault(table.at("when"), f"is not a JMESPath expression: {cause}")
        return None
    return route


def _examine(when: str | None, table: Table, findings: Findings) -> None:
    """Note what the rule cannot mean; raises InvalidRule for an unknown function."""
    if when is None:
        return
    found = examine(when)
    for mistake in found.mistakes:
        findings.mistake(table.at("when"), mistake)
    for warning in found.warnings:
        findings.warn(table.at("when"), warning)
