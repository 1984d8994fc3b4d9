"""The `relay` command: its subcommands, and how their failures become messages and exit codes."""

import codecs
import gc
import importlib
import io
import json
import os
import sys
from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Any

import click
from click.exceptions import NoSuchCommand
from click.shell_completion import CompletionItem

from relay import __version__
from relay.cli.output import safe
from relay.core import errors

_COMMANDS = {
    "serve": (".serve", "Run the relay until SIGTERM or SIGINT, then drain."),
    "demo": (".demo.command", "Watch a video service's webhooks arrive and be delivered."),
    "sandbox": (".sandbox", "Run a stand-in of the video service, without an account."),
    "check-config": (".check", "Check a config and print all of its faults."),
    "send": (".send.command", "Send signed events as the video service does."),
    "verify": (".check", "Check a captured request and explain why it fails."),
    "route": (".explain", "Show which sinks would take an event, and why."),
    "render": (".explain", "Show the message that a sink would send."),
    "status": (".status", "Show problems that need an operator, with the next steps."),
    "probe": (".status", "Check that the relay's process responds; needs no token."),
    "absences": (".absences", "List the relay's absences, or acknowledge one."),
    "events": (".events", "List or show stored events, or follow live activity."),
    "sinks": (".sinks", "List the sinks; pause, resume, retry or test one."),
    "dead-letters": (".dead_letters", "List, replay or discard dead letters."),
    "unreadable": (".unreadable", "List, show, retry or discard requests without an event."),
    "replay": (".replay", "Deliver stored events again."),
    "replays": (".replay", "List replays, or watch or cancel one."),
    "reconcile": (".reconcile", "Ask the sender's API what an outage cost, and deliver it."),
    "reconciliations": (".reconcile", "List reconciliations, or watch or cancel one."),
    "audience": (".audience", "Count viewers and leads by video, day or source."),
    "erase": (".people", "Remove a person's data."),
    "export": (".people", "Print a person's data as JSON."),
    "audit": (".audit", "List the changes that operators made."),
    "reload": (".reload", "Make the running relay read its config again."),
    "endpoint": (".endpoint.command", "Manage the webhook endpoint, through the sender's API."),
    "rotate": (".rotate.command", "Change a source's secret without losing an event."),
    "store": (".store", "Check, back up or copy the store."),
    "completion": (".completion", "Print the script for command completion in a shell."),
}
"""Module and help of each command; the module is imported only when the command is called."""

_EXIT_CODES: dict[type[BaseException], int] = {
    errors.ConfigError: os.EX_CONFIG,
    errors.SocketRefused: os.EX_CONFIG,
    errors.StoreTooNew: os.EX_CONFIG,
    errors.StoreExposed: os.EX_CONFIG,
    errors.StoreRefused: os.EX_CONFIG,
    errors.StoreLocked: os.EX_TEMPFAIL,
    errors.StoreUnavailable: os.EX_TEMPFAIL,
    errors.StoreBroken: os.EX_IOERR,
    errors.ListenFailed: os.EX_OSERR,
    errors.NoVerdict: 2,
}
"""Exit codes, from sysexits.h where one fits; `_exit_code` has those of other errors."""

_INTERRUPTED = 130
"""The exit code that shells report for SIGINT."""

_STDERR = 2
_ESCAPED = "relay.escaped"
"""The name of the error handler for what an encoding cannot hold."""

_CLICK_ERRORS = (click.ClickException, click.Abort, click.exceptions.Exit, BrokenPipeError)
"""Exceptions that click itself turns into messages and exit codes."""


@cache
def _import(name: str) -> ModuleType:
    """Import a command's module without collections, because what an import creates lives on."""
    gc.disable()
    try:
        return importlib.import_module(name, __package__)
    finally:
        # Otherwise the first collection would visit all of it, which takes as long as a tenth of
        # the imports.
        gc.freeze()
        gc.enable()


class Commands(click.Group):
    """A group that imports a command when it is called and prints every failure as one line."""

    def main(self, *arguments: Any, **named: Any) -> Any:
        complete_streams()
        escape_streams()
        return super().main(*arguments, **named)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = getattr(
            _import(_COMMANDS[cmd_name][0]), cmd_name.replace("-", "_")
        )
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] in _COMMANDS or args[0].startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        # Click suggests only commands that are imported.
        raise NoSuchCommand(args[0], possibilities=_COMMANDS, ctx=ctx)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        options = click.Command.shell_complete(self, ctx, incomplete)
        commands = [
            CompletionItem(name, help=text)
            for name, (_, text) in _COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return commands + options

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        if os.environ.get("NO_COLOR"):  # https://no-color.org
            ctx.color = False
        try:
            return super().invoke(ctx)
        except _CLICK_ERRORS:
            raise
        except KeyboardInterrupt:
            ctx.exit(_INTERRUPTED)
        except Exception as error:  # noqa: BLE001  any failure ends in a line and an exit code
            causes = list(_causes(error))
            if isinstance(causes[0], BrokenPipeError):
                raise causes[0] from None
            for cause in causes:
                click.echo(_error_text(cause), err=True)
            ctx.exit(_exit_code(causes[0]))


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the leaves of nested exception groups."""
    if isinstance(error, BaseExceptionGroup):
        for nested in error.exceptions:
            yield from _causes(nested)
    else:
        yield error


def _error_text(error: BaseException) -> str:
    if isinstance(error, errors.RelayError):
        text = str(error)
    elif isinstance(error, OSError) and error.strerror:
        text = error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    else:
        text = _bug(error)
    notes = getattr(error, "__notes__", ())
    lines = [line for part in (text, *notes) for line in part.splitlines()]
    return "\n".join(f"relay: {safe(line)}" for line in lines)


def _bug(error: BaseException) -> str:
    # The text of an unexpected exception may hold any data, so only its place is shown.
    from relay.telemetry.log import describe  # noqa: PLC0415

    fields = describe(error)
    return f"internal error, please report it: {fields['error']} at {fields['trace']}"


def _exit_code(error: BaseException) -> int:
    if isinstance(error, errors.RelayError):
        return next((code for kind, code in _EXIT_CODES.items() if isinstance(error, kind)), 1)
    return 1 if isinstance(error, OSError) else os.EX_SOFTWARE


@click.command("relay", cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="relay", message="%(prog)s %(version)s")
def main() -> None:
    """Receive the video service's webhooks and relay them, without losing an acknowledged event.

    Start with `relay demo`.
    """


def complete_streams() -> None:
    """Open the null device for each closed standard stream.

    Otherwise the next file or socket gets its descriptor, and libuv aborts when it closes one of
    these numbers.
    `sys.stdout` stays None, so that the stdout sink fails instead of losing events.
    """
    descriptor = os.open(os.devnull, os.O_RDWR)
    while descriptor <= _STDERR:
        descriptor = os.open(os.devnull, os.O_RDWR)
    os.close(descriptor)
    if sys.stdin is None:
        sys.stdin = os.fdopen(0, "r", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)


def escape_streams() -> None:
    """Escape what the encoding of an output cannot hold, as JSON does, so that JSON stays JSON."""
    codecs.register_error(_ESCAPED, _escaped)
    for stream in (sys.stdout, sys.stderr):
        # A process that serves has replaced them.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_ESCAPED)


def _escaped(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end
