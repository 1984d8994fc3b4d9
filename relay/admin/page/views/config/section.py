"""Config: what runs, from which file, with which sources, certificates and settings."""

import asyncio
import math
from collections.abc import Iterator, Sequence

import msgspec
from msgspec.structs import asdict

from relay.admin.api.reload import reload_config
from relay.admin.api.status import StatusReport, show_status
from relay.admin.facts import SourceFacts
from relay.admin.operation import Nothing
from relay.admin.page.text.settings import Setting, settings_of
from relay.admin.page.view import Action, PageView, Section
from relay.admin.page.views.config import rotation
from relay.admin.page.views.config.certificates import (
    CA_KEY,
    CLIENT_KEY,
    CertificateFile,
    read_file,
)
from relay.admin.page.visit import ActionResult, Context, Notice, PageVisit
from relay.config import Config
from relay.core.authentication import SigningKey, SourceSettings
from relay.core.minutes import DAY_MS
from relay.store.quarantine import RotationState

CERTIFICATES_TIMEOUT_S = 2.0
"""For all files, which may be on a disk that hangs."""

SOON_MS = 30 * DAY_MS
"""Time left of a certificate or secret from which on it is marked."""


class SecretRow(msgspec.Struct, frozen=True, kw_only=True):
    """One secret of a source, which itself is never shown."""

    label: str
    """Its name, or its position in the list."""
    until_ms: int | None
    tone: str
    """`bad` for one that has expired, `warn` for one that does soon."""


class SourceRow(msgspec.Struct, frozen=True, kw_only=True):
    """One source of the config."""

    settings: SourceSettings
    facts: SourceFacts
    secrets: Sequence[SecretRow]
    rotation: RotationState | None


async def read_config(visit: PageVisit, _: Nothing) -> Context:
    """Read what the view shows; a store that cannot be read leaves its parts out."""
    status: StatusReport = await visit.run(show_status, Nothing())
    config = visit.admin.config()
    return {
        "status": status,
        "config": config,
        "build": visit.admin.metrics.process.build,
        "last": visit.admin.reloads.last,
        "refused": visit.admin.reloads.refused,
        "sources": list(_sources(visit, config, status)),
        "states": {each.name: each.condition for each in status.sinks},
        "certificates": await _certificates(config),
        "soon_ms": visit.now_ms + SOON_MS,
        "tables": _tables(config),
        "backups": _backups(visit, config),
    }


def _backups(visit: PageVisit, config: Config) -> str | None:
    """Return the command that makes one, if the store's engine has it."""
    if visit.admin.store.backups.instead is not None:
        return None
    return f"relay store backup PATH --config {config.file}"


def _sources(visit: PageVisit, config: Config, status: StatusReport) -> Iterator[SourceRow]:
    facts = {each.name: each for each in status.sources}
    for source in config.sources:
        if (known := facts.get(source.name)) is not None:
            yield SourceRow(
                settings=source,
                facts=known,
                secrets=[_secret(key, visit.now_ms) for key in source.keys],
                rotation=known.rotation.state(visit.now_ms) if known.rotation else None,
            )


def _secret(key: SigningKey, now_ms: int) -> SecretRow:
    if math.isinf(key.until_ms):
        return SecretRow(label=key.label, until_ms=None, tone="")
    tone = "bad" if key.until_ms <= now_ms else "warn" if key.until_ms <= now_ms + SOON_MS else ""
    return SecretRow(label=key.label, until_ms=int(key.until_ms), tone=tone)


async def _certificates(config: Config) -> Sequence[CertificateFile]:
    named = [
        (sink.name, key, path)
        for sink in config.sinks
        for key, path in asdict(sink).items()
        if key in (CA_KEY, CLIENT_KEY) and path is not None
    ]
    try:
        async with asyncio.timeout(CERTIFICATES_TIMEOUT_S):
            return await asyncio.to_thread(lambda: [read_file(*each) for each in named])
    except TimeoutError:
        fault = f"could not be read within {CERTIFICATES_TIMEOUT_S:g} s"
        return [
            CertificateFile(sink=sink, key=key, path=path, fault=fault) for sink, key, path in named
        ]


def _tables(config: Config) -> dict[str, Sequence[Setting]]:
    tables = {
        "server": config.server,
        "store": config.store,
        "admin": config.admin,
        "log": config.log,
        "outbound": config.outbound,
    }
    apis = {f"source.{each.name}.api": each.api for each in config.sources if each.api is not None}
    return {name: list(settings_of(table)) for name, table in (tables | apis).items()}


async def reload(visit: PageVisit, _: Nothing, __: Nothing) -> ActionResult:
    """Reload the config, and use it if it has no faults."""
    changes = await visit.run(reload_config, Nothing())
    differences = [f"{what} {', '.join(paths)}" for what, paths in changes.paths().items() if paths]
    text = f"The config was reloaded: {'; '.join(differences) or 'nothing is different'}."
    return ActionResult(to=visit.url("/config"), notice=Notice(text=text))


SECTION = Section(
    name="Config",
    path="/config",
    key="f",
    routes=(
        PageView(
            "/config",
            read_config,
            "Config",
            "config.html",
            topics=("events", "sinks", "config", "changes"),
        ),
        Action("/config/reload", reload),
        *rotation.ROUTES,
    ),
)
