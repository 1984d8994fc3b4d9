"""`relay demo`: a real relay on a temporary store, and a stand-in of the video service."""

import asyncio
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, redirect_stdout
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory

import click
import httpx
import msgspec
import uvloop

from relay.app.service import ProcessHooks, Service, unless
from relay.cli.demo.environment import Environment, Listening, pipe, read_lines
from relay.cli.demo.screen import Screen
from relay.cli.demo.script import PACE_S, Script
from relay.cli.parameters import NumberRange, WholeNumber
from relay.config import load
from relay.core.clock import SystemClock
from relay.core.config_values import Secret
from relay.sandbox.population import VIEWERS_MAX
from relay.sandbox.sandbox import Sandbox
from relay.server import stop_signals
from relay.server.stop_signals import StopRequests
from relay.telemetry import log
from relay.video_service.sender import Sender

VIEWERS = 30
SPEED = 60.0
VIDEOS = 12


class _Options(msgspec.Struct, frozen=True, kw_only=True):
    command: str
    """The command that runs this relay from another terminal."""
    events: int | None
    pace_s: float
    viewers: int


@click.command()
@click.option(
    "--events",
    type=WholeNumber(min=1),
    metavar="N",
    help="Stop after N events; default: at Ctrl-C.",
)
@click.option(
    "--every",
    type=NumberRange(0, 3600),
    default=PACE_S,
    show_default=True,
    metavar="SECONDS",
    help="Time between two steps of the opening.",
)
@click.option(
    "--viewers",
    type=WholeNumber(min=0, max=VIEWERS_MAX),
    default=VIEWERS,
    show_default=True,
    metavar="N",
    help="People who watch after the opening; an hour of theirs is a minute.",
)
@click.pass_context
def demo(context: click.Context, *, events: int | None, every: float, viewers: int) -> None:
    """Watch a video service's webhooks arrive and be delivered, without a config.

    Runs a relay with a store and a stdout sink, and a stand-in of the video service (as `relay
    sandbox` does) that knows the relay as an endpoint.
    Comments go to stderr; if stdout is a file or a pipe, it gets the sink's JSON lines.
    """
    options = _Options(command=_command(context), events=events, pace_s=every, viewers=viewers)
    with TemporaryDirectory(prefix="relay-demo-") as folder, Listening.opened() as listening:
        uvloop.run(_play(Path(folder), listening, options))


async def _play(folder: Path, listening: Listening, options: _Options) -> None:
    async with _sandbox() as sandbox, sandbox.serve(listening.service) as url:
        key = Secret(sandbox.keys.create_missing()[-1].value)
        secret = await _register(url, key, listening.webhook_url)
        environment = Environment.build(folder, listening, secret=secret, key=key)
        screen = Screen(environment, command=options.command, viewers=options.viewers)
        script = Script(
            sandbox,
            screen,
            events=options.events,
            pace_s=options.pace_s,
            viewers=options.viewers,
        )
        await _relay(environment, listening, screen, script)
    script.close()


@asynccontextmanager
async def _sandbox() -> AsyncIterator[Sandbox]:
    sandbox = Sandbox(speed=SPEED)
    sandbox.populate(viewers=0, videos=VIDEOS)
    try:
        yield sandbox
    finally:
        await sandbox.close()


async def _register(url: str, key: Secret, webhook_url: str) -> Secret:
    """Register the relay as an endpoint of the service; returns the signing secret."""
    async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
        answer = await client.post(
            "/v1/webhooks",
            headers={"Authorization": f"Bearer {key.reveal()}"},
            json={"url": webhook_url, "events": []},
        )
    return Secret(answer.raise_for_status().json()["secret"])


async def _relay(
    environment: Environment, listening: Listening, screen: Screen, script: Script
) -> None:
    """Run the relay, and play the script once it is ready, until a signal or the script's end."""
    clock = SystemClock()
    stop, cut_off, ready = asyncio.Event(), asyncio.Event(), asyncio.Event()
    requests = StopRequests(clock, stop=stop.set, cut_off=cut_off.set)
    config = load(environment.config)
    log.configure(config.log)
    host = ProcessHooks(sockets={"public": listening.public, "admin": listening.admin})
    with (
        stop_signals.following(asyncio.get_running_loop(), requests),
        pipe() as (read_end, write_end),
    ):
        # The sink writes to the stdout of its creation, here the pipe that the script reads.
        with redirect_stdout(write_end):
            service = await Service.open(config, clock=clock, host=host)
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(service.run(stop, cut_off=cut_off, ready=ready.set))
            watching = group.create_task(script.watch(await read_lines(read_end)))
            if await unless(stop, ready.wait()):
                screen.open()
                await _perform(script, environment, stop)
            await serving
            write_end.close()
            await watching


async def _perform(script: Script, environment: Environment, stop: asyncio.Event) -> None:
    clock, url = SystemClock(), environment.webhook_url
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
