"""`relay completion`, and the completion of sink and source names from the config."""

import tomllib
from collections.abc import Callable

import click
from click.shell_completion import get_completion_class

Complete = Callable[[click.Context, click.Parameter, str], list[str]]

_SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def completion(context: click.Context, *, shell: str) -> None:
    """Print a script that lets a shell complete commands, options, sinks and sources.

    For this session: `eval "$(relay completion bash)"`, the same with `zsh`, or
    `relay completion fish | source`.
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise click.ClickException(f"click cannot complete commands in {shell}")
    click.echo(kind(context.find_root().command, {}, "relay", "_RELAY_COMPLETE").source())


def names_of(table: str) -> Complete:
    """Return the completion function for names of a `[[sink]]` or `[[source]]`."""

    def complete(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        from relay.config import default_path  # noqa: PLC0415  most commands need no config

        path = context.params.get("path") or default_path()
        try:
            tables = tomllib.loads(path.read_text(encoding="utf-8")).get(table, [])
            names = [entry["name"] for entry in tables]
        except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
            return []
        return [name for name in names if isinstance(name, str) and name.startswith(incomplete)]

    return complete
