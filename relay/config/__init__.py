"""Loads the config document, and refuses a faulty one with all of its faults at once."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import msgspec

from relay.config.checks import Document, check, check_api
from relay.config.document import Marks, References, parse, read_document, read_file
from relay.config.proxy_checks import check_outbound, warn_of_environment
from relay.config.rules import LABEL, RULES
from relay.config.sinks import read_sink
from relay.config.store import read_store
from relay.config.table import Findings, KeyPath, Table, TableReader, describe
from relay.core.api_settings import ApiSettings
from relay.core.authentication import SourceSettings
from relay.core.config_values import Address, Duration, Network, Secret, Size
from relay.core.errors import ConfigError, Fault
from relay.core.proxies import OutboundSettings
from relay.core.routing import Route
from relay.core.sink import SinkSettings
from relay.store import StoreSettings
from relay.telemetry.log import LogSettings


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[server]`: the two listeners and the limits of a request."""

    listen: Address = Address.parse("127.0.0.1:8080")
    admin_listen: Address = Address.parse("127.0.0.1:9464")
    max_body: Size = Size.parse("1MiB")
    body_timeout: Duration = Duration.parse("5s")
    """Shorter than the sender's timeout of 10 s (video-service.md, section 6)."""
    ack_timeout: Duration = Duration.parse("5s")
    drain_timeout: Duration = Duration.parse("10s")
    trusted_proxies: tuple[Network, ...] = (Network.parse("127.0.0.1"), Network.parse("::1"))


class AdminSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[admin]`; the admin API is off without a token."""

    token: Secret | None = None
    viewer_token: Secret | None = None
    """Opens the page without personal data, and nothing of the API."""
    allowed_hosts: tuple[str, ...] = ("localhost", "127.0.0.1", "::1")
    """Hosts of the page, without ports."""


_ROOT = KeyPath("", "")
_SECTIONS: dict[str, type[msgspec.Struct]] = {
    "server": ServerSettings,
    "admin": AdminSettings,
    "log": LogSettings,
}


class Config(msgspec.Struct, frozen=True):
    """A valid config; its secrets do not print."""

    server: ServerSettings
    store: StoreSettings
    admin: AdminSettings
    log: LogSettings
    outbound: OutboundSettings
    sources: tuple[SourceSettings, ...]
    sinks: tuple[SinkSettings, ...]
    routes: tuple[Route, ...]
    """One per sink, in the same order."""
    file: Path
    text: Secret
    """The document's text, so that `refresh` can resolve its references again."""
    references: Marks
    """Digests of the referenced files."""
    mistakes: tuple[Fault, ...] = ()
    """Certain mistakes of a config that ran before: the next release refuses them."""
    warnings: tuple[Fault, ...] = ()
    """Values that are valid but probably unintended."""


def default_path(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the config's path for a command without --config."""
    return Path(environ.get("RELAY_CONFIG") or "config.toml")


def load(path: Path, environ: Mapping[str, str] = os.environ) -> Config:
    """Read and check a document; builds every sink once, unconnected, to check its settings.

    Raises ConfigError with all faults.
    """
    return _load(path, read_file(path), environ)


def refresh(config: Config, environ: Mapping[str, str] = os.environ) -> Config:
    """Load the same text again with the current content of its references; ignores the file itself.

    Raises ConfigError with all faults.
    """
    return _load(config.file, config.text.reveal(), environ)


def _load(path: Path, text: str, environ: Mapping[str, str]) -> Config:
    findings, references = Findings(), References()
    raw = parse(path, text)
    reader = TableReader(RULES, environ, findings, references)
    document = _read_document(raw, reader, findings, environ)
    check(document, findings)
    tables = (document.outbound, document.sinks, document.sources)
    warn_of_environment(*tables, environ, findings)
    findings.raise_faults(path)
    return Config(
        server=document.server.build(),
        store=document.store.build(),
        admin=document.admin.build(),
        log=document.log.build(),
        outbound=document.outbound.build(),
        sources=tuple(table.build() for table in document.sources),
        sinks=tuple(table.build() for table in document.sinks),
        routes=tuple(route for route in document.routes if route is not None),
        file=path,
        text=Secret(text),
        references=references.marks,
        mistakes=tuple(findings.mistakes),
        warnings=tuple(findings.warnings),
    )


def load_admin_address(path: Path, environ: Mapping[str, str] = os.environ) -> Address:
    """Read only the admin listener's address; raises ConfigError with the faults of this key."""
    return cast("Address", _load_key(path, environ, "server", "admin_listen"))


def load_admin_token(path: Path, environ: Mapping[str, str] = os.environ) -> Secret | None:
    """Read only the admin listener's token; raises ConfigError with the faults of its table."""
    return cast("Secret | None", _load_key(path, environ, "admin", "token"))


def load_listen_address(path: Path, environ: Mapping[str, str] = os.environ) -> Address:
    """Read only the public listener's address; raises ConfigError with the faults of this key."""
    return cast("Address", _load_key(path, environ, "server", "listen"))


def load_sources(path: Path, environ: Mapping[str, str] = os.environ) -> tuple[SourceSettings, ...]:
    """Read only the sources, at least one; raises ConfigError with the faults of their tables."""
    findings, raw = Findings(), read_document(path)
    reader = TableReader(RULES, environ, findings)
    _read_outbound(raw, reader, findings, environ)
    tables = _sources(raw, reader, findings)
    findings.raise_faults(path)
    return tuple(table.build() for table in tables)


def load_apis(path: Path, environ: Mapping[str, str] = os.environ) -> dict[str, ApiSettings]:
    """Read only the APIs of the sources, by name; raises ConfigError with their faults."""
    findings, apis, raw = Findings(), dict[str, Table](), read_document(path)
    reader = TableReader(RULES, environ, findings)
    _read_outbound(raw, reader, findings, environ)
    for item, place in _tables(raw, "source", findings):
        if isinstance(item, dict) and "api" in item:
            apis[str(item.get("name"))] = reader.table(item["api"], ApiSettings, place.key("api"))
    for table in apis.values():
        check_api(table, findings)
    findings.raise_faults(path)
    return {name: table.build() for name, table in apis.items()}


def load_store(path: Path, environ: Mapping[str, str] = os.environ) -> StoreSettings:
    """Read only the store's settings; raises ConfigError with the faults of its table."""
    findings = Findings()
    raw = read_document(path).get("store", {})
    table = read_store(raw, _ROOT.key("store"), TableReader(RULES, environ, findings), findings)
    findings.raise_faults(path)
    return cast("StoreSettings", table.build())


def _load_key(path: Path, environ: Mapping[str, str], name: str, key: str) -> Any:
    """Read one key; faults of other keys do not matter, unless they are misspellings of it."""
    table, findings = _load_table(path, environ, name)
    of_key = (name, f"{name}.{key}")
    faults = [
        fault
        for fault in findings.faults
        if fault.path in of_key or fault.message.endswith(f"did you mean {key}?")
    ]
    if faults:
        raise ConfigError(str(path), tuple(faults))
    return table.get(key)


def _load_table(path: Path, environ: Mapping[str, str], name: str) -> tuple[Table, Findings]:
    findings = Findings()
    raw = read_document(path).get(name, {})
    return TableReader(RULES, environ, findings).table(
        raw, _SECTIONS[name], _ROOT.key(name)
    ), findings


def _read_document(
    raw: dict[str, Any], reader: TableReader, findings: Findings, environ: Mapping[str, str]
) -> Document:
    reader.unknown(raw, (*_SECTIONS, "outbound", "store", "source", "sink"), _ROOT)
    outbound = _read_outbound(raw, reader, findings, environ)
    tables = {
        name: reader.table(raw.get(name, {}), kind, _ROOT.key(name))
        for name, kind in _SECTIONS.items()
    }
    store = read_store(raw.get("store", {}), _ROOT.key("store"), reader, findings)
    sources = _sources(raw, reader, findings)
    sinks = [
        read_sink(item, place, reader, findings) for item, place in _tables(raw, "sink", findings)
    ]
    return Document(
        **tables,
        outbound=outbound,
        store=store,
        sources=sources,
        sinks=tuple(sink for sink, _ in sinks),
        routes=tuple(route for _, route in sinks),
        source_names=tuple(
            item.get("name") if isinstance(item, dict) else None
            for item, _ in _tables(raw, "source", Findings())
        ),
    )


def _read_outbound(
    raw: dict[str, Any], reader: TableReader, findings: Findings, environ: Mapping[str, str]
) -> Table:
    """Read `[outbound]`, which the tables of sinks and APIs then hold, too."""
    table = reader.table(raw.get("outbound", {}), OutboundSettings, _ROOT.key("outbound"))
    checked = check_outbound(table, environ, findings)
    reader.share(checked)
    return checked


def _sources(raw: dict[str, Any], reader: TableReader, findings: Findings) -> tuple[Table, ...]:
    if raw.get("source", []) == []:
        findings.fault(_ROOT.key("source"), "is missing: expected at least one [[source]] table")
    return tuple(
        reader.table(item, SourceSettings, place)
        for item, place in _tables(raw, "source", findings)
    )


def _tables(raw: dict[str, Any], name: str, findings: Findings) -> list[tuple[object, KeyPath]]:
    tables = raw.get(name, [])
    if not isinstance(tables, list):
        message = f"expected [[{name}]] in two pairs of brackets, found {describe(tables)}"
        findings.fault(_ROOT.key(name), message)
        return []
    return [
        (table, _ROOT.key(name).item(index, _label(table))) for index, table in enumerate(tables)
    ]


def _label(table: object) -> str:
    name = table.get("name") if isinstance(table, dict) else None
    return f" ({name})" if isinstance(name, str) and LABEL.fullmatch(name) else ""
