"""`relay check-config` and `relay verify`: checks of a config and of a captured request."""

import asyncio
import json
import os
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import click

from relay import sinks
from relay.cli import contact, moments
from relay.cli.diagnosis import Diagnosis, diagnose
from relay.cli.parameters import config_option, json_option, parsed
from relay.config import Config, default_path, load, load_store
from relay.config.checks import expired
from relay.core.clock import SystemClock
from relay.core.config_values import Secret
from relay.core.errors import ConfigError, Fault, SinkError
from relay.core.retry import result_of
from relay.core.sink import Sink, SinkSettings
from relay.store.sqlite.place import obstacle


@dataclass(frozen=True)
class Contact:
    """The result of one sink's `check`."""

    sink: str
    type: str
    ok: bool
    text: str


@click.command("check-config")
@config_option
@click.option(
    "--connect", is_flag=True, help="Also connect to each sink, without delivering an event."
)
@json_option
@click.pass_context
def check_config(
    context: click.Context, *, path: Path | None, connect: bool, as_json: bool
) -> None:
    """Check a config and print all of its faults."""
    path = path or default_path(os.environ)
    try:
        config = _load_usable(path)
        expired_secrets = expired(config.sources, now_ms=SystemClock().now_ms())
        config = replace(config, warnings=(*config.warnings, *expired_secrets))
    except ConfigError as error:
        click.echo(_faults_json(error) if as_json else str(error))
        context.exit(1)
    contacts = asyncio.run(reach(config.sinks)) if connect else ()
    show = _summary_json if as_json else _summary
    click.echo(show(path, config, contacts))
    context.exit(0 if all(contact.ok for contact in contacts) else 1)


@click.command()
@click.option("--secret", required=True, metavar="REF", help="env:NAME, file:/path or the secret.")
@click.option("--header", required=True, metavar="VALUE", help="The signature header as received.")
@click.option("--body", required=True, type=click.File("rb"), help="The raw body; - is stdin.")
@click.option(
    "--at",
    metavar="WHEN",
    callback=parsed(moments.parse),
    help='Time of receipt: a Unix time, "11:18", a date; default now.',
)
@click.option("--tolerance", default="5m", show_default=True, help="Maximum clock difference.")
@json_option
@click.pass_context
def verify(
    context: click.Context,
    *,
    secret: str,
    header: str,
    body: BinaryIO,
    at: int | None,
    tolerance: str,
    as_json: bool,
) -> None:
    """Check a captured request and explain why it fails."""
    diagnosis = diagnose(
        _header(header),
        body.read(),
        secret=_parsed("--secret", Secret.resolve, secret).reveal().encode(),
        now_s=int(time.time()) if at is None else at // 1000,
        tolerance=_parsed("--tolerance", moments.duration, tolerance),
    )
    click.echo(_diagnosis_json(diagnosis) if as_json else _diagnosis_text(diagnosis))
    context.exit(0 if diagnosis.good else 1)


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
        cause = obstacle(Path(load_store(path).path))
    except ConfigError:
        return ()  # `load` reports them as well
    return () if cause is None else (Fault("store.path", f"serve cannot open it: {cause}"),)


async def reach(settings: Iterable[SinkSettings]) -> tuple[Contact, ...]:
    """Check all sinks concurrently, each with its own timeout."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_contact(sink)) for sink in settings]
    return tuple(task.result() for task in tasks)


async def _contact(settings: SinkSettings) -> Contact:
    sink: Sink = sinks.load(settings.type).build(settings, SystemClock())
    try:
        async with asyncio.timeout(settings.timeout.seconds):
            ok, text = True, contact.reached(await sink.check())
    except TimeoutError:
        reason = f"no answer within {settings.timeout.seconds:g} s"
        ok, text = False, contact.failed(reason, None, "retry")
    except SinkError as error:
        ok, text = False, contact.failed(error.reason, error.status, result_of(error))
    except Exception as error:  # noqa: BLE001  a sink's bug is a finding; its text may hold secrets
        ok, text = False, f"failed with an internal error of the sink: {type(error).__name__}"
    finally:
        await sink.close()
    return Contact(settings.name, settings.type, ok, text)


def _summary(path: Path, config: Config, contacts: Iterable[Contact]) -> str:
    server, store = config.server, config.store
    names = ", ".join(f"{sink.name} ({sink.type})" for sink in config.sinks)
    lines = [
        f"{path}: good",
        f"  listeners  {server.listen} for sources, {server.admin_listen} for the admin",
        f"  store      {store.type} at {store.path}",
        f"  sources    {', '.join(f'{source.name} at {source.path}' for source in config.sources)}",
        f"  sinks      {names or 'none'}",
        *(f"  warning    {warning}" for warning in config.warnings),
        *(f"  sink {contact.sink} ({contact.type}): {contact.text}" for contact in contacts),
    ]
    return "\n".join(lines)


def _summary_json(path: Path, config: Config, contacts: Iterable[Contact]) -> str:
    return json.dumps(
        {
            "file": str(path),
            "ok": all(contact.ok for contact in contacts),
            "faults": [],
            "warnings": _listed(config.warnings),
            "listen": config.server.listen,
            "admin_listen": config.server.admin_listen,
            "store": {"type": config.store.type, "path": config.store.path},
            "sources": [{"name": source.name, "path": source.path} for source in config.sources],
            "sinks": [{"name": sink.name, "type": sink.type} for sink in config.sinks],
            "connections": [vars(contact) for contact in contacts],
        }
    )


def _faults_json(error: ConfigError) -> str:
    return json.dumps({"file": error.file, "ok": False, "faults": _listed(error.faults)})


def _listed(faults: Iterable[Fault]) -> list[dict[str, str]]:
    return [{"path": fault.path, "message": fault.message} for fault in faults]


def _header(value: str) -> bytes:
    # A header copied from a log often includes its name.
    named = re.fullmatch(r"[A-Za-z0-9-]+:\s*(.*)", value.strip(), re.DOTALL)
    return (named[1] if named else value.strip()).encode("utf-8", "surrogateescape")


def _parsed(option: str, parse: Any, text: str) -> Any:
    try:
        return parse(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=option) from None


def _diagnosis_text(diagnosis: Diagnosis) -> str:
    cause = f"\n{diagnosis.cause}" if diagnosis.cause else ""
    return f"{diagnosis.result}: {diagnosis.text}{cause}"


def _diagnosis_json(diagnosis: Diagnosis) -> str:
    return json.dumps({"ok": diagnosis.good, **vars(diagnosis)})
