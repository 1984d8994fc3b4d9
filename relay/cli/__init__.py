"""Which commands there are, and how each error of ours ends one: a readable line and an exit code."""

from importlib import import_module
from typing import Any, NamedTuple, cast

import click

from relay.errors import ConfigError, RelayError, StoreBroken, StoreLocked

EXIT_CODES: tuple[tuple[type[RelayError], int], ...] = (
    (ConfigError, 78),
    (StoreLocked, 75),
    (StoreBroken, 74),
    (RelayError, 1),
)
"""The first row that fits decides; the numbers are those of sysexits.h."""

INTERRUPTED = 130


class Entry(NamedTuple):
    """Where a command is, and its line in the help, so that showing the help imports none of them."""

    target: str
    summary: str


COMMANDS: dict[str, Entry] = {
    "serve": Entry("relay.cli.serve:serve", "Run the relay until SIGTERM or SIGINT, then drain."),
    "demo": Entry("relay.cli.serve:demo", "Show the whole relay at work, with no config."),
    "check-config": Entry(
        "relay.cli.check:check_config", "Check a config and print every fault at once."
    ),
    "send": Entry("relay.cli.send:send", "Sign and send events as the video service does."),
    "verify": Entry(
        "relay.cli.check:verify", "Check one captured request and say exactly why it fails."
    ),
    "route": Entry("relay.cli.event:route", "Say which sinks would take an event, and why."),
    "render": Entry("relay.cli.event:render", "Show what a sink would be sent for an event."),
    "store": Entry("relay.cli.store:store", "Look after the store."),
}


class Commands(click.Group):
    """Imports a command when it is called; every command costs only what it needs itself."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name].target.partition(":")
        return cast("click.Command", getattr(import_module(module), attribute))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401
        try:
            return super().invoke(ctx)
        except RelayError as error:
            complain(error)
            ctx.exit(next(code for kind, code in EXIT_CODES if isinstance(error, kind)))
        except KeyboardInterrupt:
            click.echo(err=True)  # ends the line on which the terminal shows ^C
            ctx.exit(INTERRUPTED)


def complain(error: RelayError) -> None:
    """Print an error on stderr: a line, or one for each fault of a config."""
    for line in str(error).splitlines() or [type(error).__name__]:
        click.echo(f"relay: {line}", err=True)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="relay", message="relay %(version)s")
def main() -> None:
    """Receive the video service's webhooks, and relay them without losing any."""
