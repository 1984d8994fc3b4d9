"""`relay check-config` and `relay verify`: checks of a config and of a captured request."""

import asyncio
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import click
import msgspec
from msgspec.structs import asdict, replace

from relay import sinks
from relay.cli import api_check, route_table
from relay.cli.diagnosis import diagnose
from relay.cli.output import Output, check_failed, check_passed, printing
from relay.cli.parameters import config_option, moment_option, parse_duration, parsed
from relay.config import Config, default_path, load, load_store
from relay.config.secret_checks import expired
from relay.core.clock import SystemClock
from relay.core.config_values import Duration, Secret
from relay.core.errors import ConfigError, Fault, SinkError, StoreError
from relay.core.retry import result_of
from relay.core.sink import Sink, SinkSettings
from relay.core.timeouts import RequestTimeout
from relay.store import Preflight, StoreSettings, engines


class Contact(msgspec.Struct, frozen=True):
    """The result of one sink's `check`."""

    sink: str
    type: str
    ok: bool
    text: str


class DatabaseCheck(msgspec.Struct, frozen=True):
    """The result of the connection to the store's database."""

    ok: bool
    text: str
    warnings: tuple[str, ...] = ()


@click.command("check-config")
@config_option
@click.option(
    "--connect",
    is_flag=True,
    help="Also ask the database, each sink and each source's API, without an event or a change.",
)
@printing
def check_config(*, path: Path | None, connect: bool) -> Output:
    """Check a config and print all of its faults."""
    path = path or default_path()
    try:
        config = _load_usable(path)
    except ConfigError as error:
        document = {"file": error.file, "ok": False, "faults": error.faults}
        return Output(document, [str(error)], ok=False)
    expired_secrets = expired(config.sources, now_ms=SystemClock().now_ms())
    unsuited = _preflight(config.store).warnings
    config = replace(config, warnings=(*config.warnings, *expired_secrets, *unsuited))
    routes = route_table.routes(config)
    database = asyncio.run(reach_store(config.store)) if connect else None
    contacts = asyncio.run(reach(config.sinks)) if connect else ()
    apis = api_check.check(config) if connect else ()
    reports = (*((database,) if database else ()), *contacts, *apis)
    failed = sum(not each.ok for each in reports)
    ok = not failed and not config.mistakes
    document = {
        "file": str(path),
        "ok": ok,
        "faults": config.mistakes,
        **_document(config, contacts),
        "database": database,
        "apis": apis,
        "routes": route_table.document(routes),
        "notes": route_table.notes(config, routes),
    }
    lines = (
        *(f"{path}: {mistake}" for mistake in config.mistakes),
        f"{path}: {_verdict(config, database, failed, len(reports))}",
        *_summary(config, database, contacts),
        *map(api_check.line, apis),
        *(f"  note       {note}" for note in route_table.notes(config, routes)),
        *route_table.lines(routes),
    )
    return Output(document, lines, ok=ok)


@click.command()
@click.option(
    "--secret",
    required=True,
    metavar="REF",
    callback=parsed(Secret.resolve),
    help="env:NAME, file:/path or the secret.",
)
@click.option("--header", required=True, metavar="VALUE", help="The signature header as received.")
@click.option("--body", required=True, type=click.File("rb"), help="The raw body; - is stdin.")
@moment_option("at", 'Time of receipt: a Unix time, "11:18", a date; default now.')
@click.option(
    "--tolerance",
    default="5m",
    show_default=True,
    callback=parsed(parse_duration),
    help="Maximum clock difference.",
)
@printing
def verify(
    *, secret: Secret, header: str, body: BinaryIO, at_ms: int | None, tolerance: Duration
) -> Output:
    """Check a captured request and explain why it fails."""
    # A header copied from a log often includes its name.
    value = re.sub(r"^[A-Za-z0-9-]+:", "", header.strip()).strip()
    diagnosis = diagnose(
        value.encode("utf-8", "surrogateescape"),
        body.read(),
        secret=secret.reveal().encode(),
        now_s=int(time.time()) if at_ms is None else at_ms // 1000,
        tolerance=tolerance,
    )
    lines = [f"{diagnosis.result}: {diagnosis.text}", diagnosis.cause]
    return Output(
        {"ok": diagnosis.good, **asdict(diagnosis)}, filter(None, lines), ok=diagnosis.good
    )


def _load_usable(path: Path) -> Config:
    """Load a config and check that `serve` could open its store; raises ConfigError."""
    faults = _store_faults(path)
    try:
        config = load(path)
    except ConfigError as error:
        raise ConfigError(error.file, (*error.faults, *faults)) from None
    if faults:
        raise ConfigError(str(path), faults)
    return config


def _store_faults(path: Path) -> tuple[Fault, ...]:
    try:
        settings = load_store(path)
    except ConfigError:
        return ()  # `load` reports them as well
    fault = _preflight(settings).fault
    return () if fault is None else (fault,)


def _preflight(settings: StoreSettings) -> Preflight:
    return engines.of(settings).preflight(settings)


def _verdict(config: Config, database: DatabaseCheck | None, failed: int, connections: int) -> str:
    mistakes, warnings = len(config.mistakes), len(config.warnings)
    if database is not None:
        warnings += len(database.warnings)
    parts = ["good"]
    if mistakes:
        parts = [f"{_count(mistakes, 'fault')}; until the next release, serve only warns"]
    elif warnings:
        parts = [f"good, with {_count(warnings, 'warning')}"]
    if failed:
        parts.append(f"but {failed} of {connections} connections failed")
    return ", ".join(parts)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


async def reach_store(settings: StoreSettings) -> DatabaseCheck | None:
    """Connect to the store's database as `serve` does; None if it is not one to connect to."""
    try:
        reached = await engines.of(settings).reach(settings)
    except StoreError as error:
        return DatabaseCheck(ok=False, text=str(error))
    if reached is None:
        return None
    warnings = tuple("{reason}: {advice}".format(**each.fields) for each in reached.warnings)
    return DatabaseCheck(ok=True, text=reached.text, warnings=warnings)


async def reach(settings: Iterable[SinkSettings]) -> tuple[Contact, ...]:
    """Check all sinks concurrently, each with its own timeout."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_contact(sink)) for sink in settings]
    return tuple(task.result() for task in tasks)


async def _contact(settings: SinkSettings) -> Contact:
    sink: Sink = sinks.load(settings.type).build(settings, SystemClock())
    limit = RequestTimeout(settings.timeout.seconds)
    try:
        async with limit:
            ok, text = True, check_passed(await sink.check())
    except TimeoutError:
        ok, text = False, check_failed(limit.reason(), None, "retry")
    except SinkError as error:
        ok, text = False, check_failed(error.reason, error.status, result_of(error))
    except Exception as error:  # noqa: BLE001  a sink's bug is a finding; its text may hold secrets
        ok, text = False, f"internal error of the sink, please report it: {type(error).__name__}"
    finally:
        await sink.close()
    return Contact(settings.name, settings.type, ok, text)


def _summary(
    config: Config, database: DatabaseCheck | None, contacts: Iterable[Contact]
) -> Iterator[str]:
    server, store = config.server, config.store
    location = engines.of(store).location(store)
    if _preflight(store).is_missing:
        location = f"{Path(location).absolute()}, which will be created"
    sources = ", ".join(f"{source.name} at {source.path}" for source in config.sources)
    names = ", ".join(f"{sink.name} ({sink.type})" for sink in config.sinks)
    yield f"  listeners  {server.listen} for sources, {server.admin_listen} for the admin"
    yield f"  store      {store.type} at {location}"
    yield f"  sources    {sources}"
    yield f"  sinks      {names or 'none'}"
    yield from (f"  warning    {warning}" for warning in config.warnings)
    if database is not None:
        yield f"  database   {database.text}"
        yield from (f"  warning    {warning}" for warning in database.warnings)
    yield from (f"  sink {contact.sink} ({contact.type}): {contact.text}" for contact in contacts)


def _document(config: Config, contacts: Iterable[Contact]) -> dict[str, object]:
    return {
        "warnings": config.warnings,
        "listen": str(config.server.listen),
        "admin_listen": str(config.server.admin_listen),
        "store": {
            "type": config.store.type,
            "location": engines.of(config.store).location(config.store),
            "is_missing": _preflight(config.store).is_missing,
        },
        "sources": [{"name": source.name, "path": source.path} for source in config.sources],
        "sinks": [{"name": sink.name, "type": sink.type} for sink in config.sinks],
        "connections": contacts,
    }
