"""`relay demo`: a real relay on a temporary store, with a sender of sample events."""

import asyncio
import secrets
import signal
import sys
from contextlib import redirect_stdout
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory

import click
import uvloop

from relay.app.service import Service
from relay.cli.demo.environment import Environment, pipe, read_lines
from relay.cli.demo.script import Script
from relay.cli.parameters import Number
from relay.config import Config, load
from relay.core.clock import SystemClock
from relay.core.config_values import Secret
from relay.telemetry import log
from relay.video_service.sender import Sender


@click.command()
@click.option(
    "--events",
    type=click.IntRange(min=1),
    metavar="N",
    help="Stop after N events; default: at Ctrl-C.",
)
@click.option(
    "--every",
    type=Number(0, 3600),
    metavar="SECONDS",
    help="Time between two events; default: 1.5 in the first round, then 10.",
)
@click.pass_context
def demo(context: click.Context, *, events: int | None, every: float | None) -> None:
    """Watch signed sample events arrive and be delivered, without a config.

    Runs a relay with a store and a stdout sink, and a sender that signs as the video service does.
    Comments go to stderr; if stdout is a file or a pipe, it gets the sink's JSON lines.
    """
    with TemporaryDirectory(prefix="relay-demo-") as folder:
        environment = Environment.build(Path(folder))
        config = load(environment.config)
        log.configure(config.log)
        script = Script(environment, command=_command(context), events=events, every_s=every)
        uvloop.run(_play(environment, config, script))


async def _play(environment: Environment, config: Config, script: Script) -> None:
    loop = asyncio.get_running_loop()
    stop, opened = asyncio.Event(), loop.create_future()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)

    def ready() -> None:
        # Read the addresses now: after a Ctrl-C during the start, the listeners close next.
        opened.set_result((f"{service.public.url}{config.sources[0].path}", service.admin.url))

    with pipe() as (read_end, write_end):
        # The sink writes to the stdout of its creation, here the pipe that the script reads.
        with redirect_stdout(write_end):
            service = await Service.open(config, clock=SystemClock())
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(service.run(stop, ready=ready))
            watching = group.create_task(script.watch(await read_lines(read_end)))
            url, admin_url = await opened
            script.open(url, admin_url)
            await _perform(script, environment, url, stop)
            await serving
            write_end.close()
            await watching
    script.close()


async def _perform(script: Script, environment: Environment, url: str, stop: asyncio.Event) -> None:
    clock = SystemClock()
    async with (
        Sender(url, environment.secret, clock=clock, schedule=()) as sender,
        Sender(url, Secret(secrets.token_hex()), clock=clock, schedule=()) as forger,
        asyncio.TaskGroup() as group,
    ):
        performing = group.create_task(script.perform(sender, forger, stop))
        await stop.wait()
        performing.cancel()


def _command(context: click.Context) -> str:
    """Return the command that runs this relay from another terminal."""
    name = context.find_root().info_name or "relay"
    return sys.argv[0] if name == "relay" and which(name) is None else name
