"""The `relay` command: which commands there are, and how a failure of one is told to a shell."""

import gc
import importlib
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import click
from click.exceptions import NoSuchCommand
from click.shell_completion import CompletionItem

from relay.cli import stdio
from relay.cli.output import safe
from relay.core.errors import (
    ConfigError,
    ListenFailed,
    NoVerdict,
    RelayError,
    SocketRefused,
    StoreBroken,
    StoreExposed,
    StoreFull,
    StoreLocked,
    StoreTooNew,
)


class _Command(NamedTuple):
    """`place` is imported when the command is called, so that a small command starts fast."""

    place: str
    help: str


_COMMANDS = {
    "serve": _Command(
        "relay.cli.serve:serve", "Run the relay until it is told to stop, then drain."
    ),
    "demo": _Command("relay.cli.demo.command:demo", "Watch signed events arrive and be delivered."),
    "check-config": _Command(
        "relay.cli.check:check_config", "Check a config and print every fault at once."
    ),
    "send": _Command(
        "relay.cli.send.command:send", "Send signed events as the video service does."
    ),
    "verify": _Command(
        "relay.cli.check:verify", "Check one captured request and say exactly why it fails."
    ),
    "route": _Command("relay.cli.explain:route", "Say which sinks would take an event, and why."),
    "render": _Command("relay.cli.explain:render", "Show what one sink would be sent."),
    "status": _Command(
        "relay.cli.status:status", "Say whether anything needs a person, and what to do."
    ),
    "probe": _Command(
        "relay.cli.probe:probe", "Ask whether the relay's process answers; needs no token."
    ),
    "absences": _Command(
        "relay.cli.absences:absences", "Look at when the relay was away, and acknowledge it."
    ),
    "events": _Command("relay.cli.events:events", "Look at stored events and at what happens."),
    "sinks": _Command("relay.cli.sinks:sinks", "Look at the sinks; pause, retry, test them."),
    "dead-letters": _Command(
        "relay.cli.dead_letters:dead_letters", "Look at what was given up; replay or discard it."
    ),
    "unreadable": _Command(
        "relay.cli.unreadable:unreadable", "Look at verified requests that hold no event."
    ),
    "replay": _Command("relay.cli.replay:replay", "Deliver stored events again."),
    "replays": _Command("relay.cli.replay:replays", "Look at replays, and end one."),
    "audience": _Command(
        "relay.cli.audience:audience", "Count viewers and leads by video, day or source."
    ),
    "erase": _Command("relay.cli.people:erase", "Remove a person's data."),
    "export": _Command("relay.cli.people:export", "Print a person's data as JSON."),
    "audit": _Command("relay.cli.audit:audit", "Look at what operators have changed."),
    "reload": _Command("relay.cli.reload:reload", "Have the running relay read its config again."),
    "rotate": _Command(
        "relay.cli.rotate:rotate", "Change a source's secret without losing an event."
    ),
    "store": _Command("relay.cli.store:store", "Look after the store."),
    "completion": _Command(
        "relay.cli.completion:completion", "Print what makes a shell complete these commands."
    ),
}

_EXIT_CODES: dict[type[BaseException], int] = {
    ConfigError: os.EX_CONFIG,
    SocketRefused: os.EX_CONFIG,
    StoreTooNew: os.EX_CONFIG,
    StoreExposed: os.EX_CONFIG,
    StoreLocked: os.EX_TEMPFAIL,
    StoreFull: os.EX_TEMPFAIL,
    StoreBroken: os.EX_IOERR,
    ListenFailed: os.EX_OSERR,
    NoVerdict: 2,
}
"""As sysexits.h names them; every other error is 1."""

_INTERRUPTED = 130
"""What a shell reports for a program that SIGINT ended."""

_CLICK_ERRORS = (click.ClickException, click.Abort, click.exceptions.Exit, BrokenPipeError)
"""What click turns into words and exit codes by itself."""


class Commands(click.Group):
    """A group that imports a command when it is called and ends every failure in a line."""

    def main(self, *arguments: Any, **named: Any) -> Any:
        stdio.complete()
        return super().main(*arguments, **named)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _COMMANDS:
            return None
        module, _, attribute = _COMMANDS[cmd_name].place.partition(":")
        gc.disable()  # what an import makes is kept
        try:
            command: click.Command = getattr(importlib.import_module(module), attribute)
        finally:
            gc.enable()
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] in _COMMANDS or args[0].startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        # Click itself proposes only commands that are imported.
        raise NoSuchCommand(args[0], possibilities=_COMMANDS, ctx=ctx)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        options = click.Command.shell_complete(self, ctx, incomplete)
        names = [name for name in _COMMANDS if name.startswith(incomplete)]
        return [CompletionItem(name, help=_COMMANDS[name].help) for name in names] + options

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.help) for name, command in _COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        if os.environ.get("NO_COLOR"):  # https://no-color.org
            ctx.color = False
        try:
            return super().invoke(ctx)
        except _CLICK_ERRORS:
            raise
        except KeyboardInterrupt:
            ctx.exit(_INTERRUPTED)
        except Exception as error:  # noqa: BLE001  whatever it is, the shell gets a line and a code
            causes = list(_causes(error))
            if isinstance(causes[0], BrokenPipeError):
                raise causes[0] from None
            for cause in causes:
                click.echo(_error_text(cause), err=True)
            ctx.exit(_exit_code(causes[0]))


def _causes(error: BaseException) -> Iterator[BaseException]:
    """What is inside of the groups that a TaskGroup raises."""
    if isinstance(error, BaseExceptionGroup):
        for nested in error.exceptions:
            yield from _causes(nested)
    else:
        yield error


def _error_text(error: BaseException) -> str:
    if isinstance(error, RelayError):
        text = str(error)
    elif isinstance(error, OSError) and error.strerror:
        text = error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    else:
        text = _bug(error)
    notes = getattr(error, "__notes__", ())
    lines = [line for part in (text, *notes) for line in part.splitlines()]
    return "\n".join(f"relay: {safe(line)}" for line in lines)


def _bug(error: BaseException) -> str:
    # The text of an exception that nobody foresaw can hold anything, so only its place is shown.
    from relay.telemetry.log import describe  # noqa: PLC0415

    fields = describe(error)
    return f"a fault of relay's own, please report it: {fields['error']} at {fields['trace']}"


def _exit_code(error: BaseException) -> int:
    if isinstance(error, RelayError):
        return next((code for kind, code in _EXIT_CODES.items() if isinstance(error, kind)), 1)
    return 1 if isinstance(error, OSError) else os.EX_SOFTWARE


@click.command("relay", cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="relay", prog_name="relay", message="%(prog)s %(version)s")
def main() -> None:
    """Receive the video service's webhooks and relay them; what was acknowledged is never lost.

    Start with `relay demo`.
    """
