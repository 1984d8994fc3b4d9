"""The config document: read, checked against itself, and refused with every fault at once."""

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from relay.config.checks import Document, check
from relay.config.references import Marks, References
from relay.config.rules import LABEL, RULES
from relay.config.sections import AdminSettings, ServerSettings
from relay.config.sinks import read_sink
from relay.config.table import Findings, Place, Reader, found
from relay.errors import ConfigError, Fault
from relay.inbound import SourceSettings
from relay.log import LogSettings
from relay.routing import Route
from relay.settings import Secret, read_text
from relay.sink import SinkSettings
from relay.store import StoreSettings

__all__ = [
    "AdminSettings",
    "Config",
    "ServerSettings",
    "again",
    "default_path",
    "load",
    "load_admin",
    "load_store",
]

_ROOT = Place("", "")
_SECTIONS: dict[str, type[msgspec.Struct]] = {
    "server": ServerSettings,
    "store": StoreSettings,
    "admin": AdminSettings,
    "log": LogSettings,
}


@dataclass(frozen=True)
class Config:
    """A document without a fault; secrets in it do not print."""

    server: ServerSettings
    store: StoreSettings
    admin: AdminSettings
    log: LogSettings
    sources: tuple[SourceSettings, ...]
    sinks: tuple[SinkSettings, ...]
    routes: tuple[Route, ...]
    """One per sink, in the same order."""
    file: Path
    text: Secret
    """The document itself, so that it can be read again with what its references hold by then."""
    references: Marks
    """The files that were read beside it."""
    warnings: tuple[Fault, ...] = ()
    """What is allowed but hardly meant."""


def default_path(environ: Mapping[str, str] = os.environ) -> Path:
    """Where the config is when no command-line option says so."""
    return Path(environ.get("RELAY_CONFIG") or "config.toml")


def load(path: Path, environ: Mapping[str, str] = os.environ) -> Config:
    """Read and check a document; every sink is built once, unconnected, to prove that it can be.

    Raises ConfigError with all faults.
    """
    return _load(path, _text(path), environ)


def again(config: Config, environ: Mapping[str, str] = os.environ) -> Config:
    """Check the same document, whatever its file says by now, with what is behind its references.

    Raises ConfigError with all faults.
    """
    return _load(config.file, config.text.reveal(), environ)


def _load(path: Path, text: str, environ: Mapping[str, str]) -> Config:
    findings, references = Findings(), References()
    raw = _parse(path, text)
    document = _read(raw, Reader(RULES, environ, findings, references), findings)
    check(document, findings)
    if findings.faults:
        raise ConfigError(str(path), tuple(findings.faults))
    return Config(
        server=document.server.build(),
        store=document.store.build(),
        admin=document.admin.build(),
        log=document.log.build(),
        sources=tuple(table.build() for table in document.sources),
        sinks=tuple(table.build() for table in document.sinks),
        routes=tuple(route for route in document.routes if route is not None),
        file=path,
        text=Secret(text),
        references=references.marks,
        warnings=tuple(findings.warnings),
    )


def load_admin(
    path: Path, environ: Mapping[str, str] = os.environ
) -> tuple[ServerSettings, AdminSettings]:
    """Read only what leads to the admin listener: a shell seldom has the sinks' secrets.

    Raises ConfigError with the faults of these two tables.
    """
    server, admin = _load_only(path, environ, "server", "admin")
    return server, admin


def load_store(path: Path, environ: Mapping[str, str] = os.environ) -> StoreSettings:
    """Read only what leads to the store; raises ConfigError with the faults of its table."""
    store: StoreSettings
    (store,) = _load_only(path, environ, "store")
    return store


def _load_only(path: Path, environ: Mapping[str, str], *names: str) -> list[Any]:
    findings = Findings()
    raw = _parse(path, _text(path))
    reader = Reader(RULES, environ, findings)
    tables = [reader.table(raw.get(name, {}), _SECTIONS[name], _ROOT.key(name)) for name in names]
    if findings.faults:
        raise ConfigError(str(path), tuple(findings.faults))
    return [table.build() for table in tables]


def _text(path: Path) -> str:
    try:
        return read_text(path)
    except ValueError as error:
        raise ConfigError(str(path), (Fault("", str(error)),)) from None


def _parse(path: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except RecursionError:
        fault = "is not TOML that can be read: nested too deeply"
    except ValueError as error:  # also raised bare, for a number of thousands of digits
        last = text.rstrip().count("\n") + 1
        where = re.sub(r"at end of document", f"at the end, line {last}", str(error))
        fault = f"is not TOML: {where}"
    raise ConfigError(str(path), (Fault("", fault),))


def _read(raw: dict[str, Any], reader: Reader, findings: Findings) -> Document:
    reader.unknown(raw, (*_SECTIONS, "source", "sink"), _ROOT)
    tables = {
        name: reader.table(raw.get(name, {}), kind, _ROOT.key(name))
        for name, kind in _SECTIONS.items()
    }
    found_sources = _each(raw, "source", findings)
    sources = tuple(reader.table(item, SourceSettings, place) for item, place in found_sources)
    if "source" not in raw:
        findings.fault(_ROOT.key("source"), "is missing: expected at least one [[source]] table")
    sinks = [
        read_sink(item, place, reader, findings) for item, place in _each(raw, "sink", findings)
    ]
    return Document(
        **tables,
        sources=sources,
        sinks=tuple(sink for sink, _ in sinks),
        routes=tuple(route for _, route in sinks),
        source_names=tuple(
            item.get("name") if isinstance(item, dict) else None for item, _ in found_sources
        ),
    )


def _each(raw: dict[str, Any], name: str, findings: Findings) -> list[tuple[object, Place]]:
    tables = raw.get(name, [])
    if not isinstance(tables, list):
        message = f"expected [[{name}]] in two pairs of brackets, found {found(tables)}"
        findings.fault(_ROOT.key(name), message)
        return []
    return [
        (table, _ROOT.key(name).item(index, _label(table))) for index, table in enumerate(tables)
    ]


def _label(table: object) -> str:
    name = table.get("name") if isinstance(table, dict) else None
    return f" ({name})" if isinstance(name, str) and LABEL.fullmatch(name) else ""
