"""`relay sandbox`: a stand-in of the whole video service, until SIGTERM or SIGINT."""

import asyncio
import math
from pathlib import Path

import click
import uvloop

from relay.cli.parameters import NumberRange, WholeNumber, parsed
from relay.core.clock import SystemClock
from relay.core.config_values import Address
from relay.core.delivery_rules import GIVE_UP_S
from relay.sandbox import state
from relay.sandbox.api.controls import SPEED_MAX
from relay.sandbox.model import Workspace
from relay.sandbox.population import VIDEOS_MAX, VIEWERS_MAX
from relay.sandbox.sandbox import Sandbox
from relay.server import stop_signals
from relay.server.stop_signals import StopRequests
from relay.telemetry import log

_OPENING = """\
The video service's stand-in listens on {url}

  API       {url}/v1, described by {url}/v1/openapi.json
  controls  {url}/sandbox
  speed     {speed:g} times

Keys, sent as `Authorization: Bearer KEY`:

{keys}

To send to a relay, put this below a [[source]] of its config:

  [source.api]
  base_url = "{url}"
  key = "env:API_KEY"
  give_up_after = "{give_up_s}s"

Then run in another terminal; the first of these commands prints what else the config needs:

  export API_KEY={admin}
  relay endpoint register --url http://127.0.0.1:8080/webhooks --secret-file sandbox-secret
  relay check-config --connect
  relay serve

While the relay runs:

  relay endpoint test
  relay reconcile --since 1h --dry-run

Ctrl-C stops it{kept}.
"""

_EXPOSED = (
    "Warning: the sandbox listens on {listen}, beyond this machine. Whoever reaches it can take a "
    "key and make it send to any address. Listen on 127.0.0.1, unless a firewall keeps others out."
)


@click.command()
@click.option(
    "--listen",
    default="127.0.0.1:8090",
    show_default=True,
    metavar="ADDRESS",
    callback=parsed(Address.parse),
    help="Address of the API; port 0 is any free port.",
)
@click.option(
    "--state",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="PATH",
    help="File to go on from, and to keep the state in; default: none.",
)
@click.option(
    "--speed",
    type=NumberRange(0.01, SPEED_MAX),
    default="60",
    show_default=True,
    metavar="N",
    help="Divides waits, processing times and viewing times.",
)
@click.option(
    "--seed",
    type=WholeNumber(min=0),
    default=7,
    show_default=True,
    metavar="N",
    help="Makes a new state; a kept one has its own.",
)
@click.option(
    "--viewers",
    type=WholeNumber(min=0, max=VIEWERS_MAX),
    default=200,
    show_default=True,
    metavar="N",
    help="People who watch; 0 for a sandbox where nothing happens by itself.",
)
@click.option(
    "--videos",
    type=WholeNumber(min=0, max=VIDEOS_MAX),
    default=12,
    show_default=True,
    metavar="N",
    help="Videos that a new state begins with.",
)
@click.option(
    "--allowed-host",
    "allowed_hosts",
    multiple=True,
    metavar="NAME",
    help="Name under which others reach it; repeatable. Addresses and localhost always work.",
)
def sandbox(
    *,
    listen: Address,
    path: Path | None,
    speed: float,
    seed: int,
    viewers: int,
    videos: int,
    allowed_hosts: tuple[str, ...],
) -> None:
    """Run a stand-in of the video service, to develop and test against without an account.

    Viewers watch its videos. It serves the service's API, and sends signed webhooks to the
    endpoints that are registered there. For development only: everyone who reaches it may use its
    controls.
    """
    log.configure(log.LogSettings(format="console"))
    workspace = None if path is None else state.read(path)
    opened = Sandbox(
        workspace or Workspace(seed=seed),
        speed=speed,
        state=path,
        allowed_hosts=(*allowed_hosts, listen.host),
    )
    opened.populate(viewers=viewers, videos=videos)
    uvloop.run(_run(opened, listen))


async def _run(sandbox: Sandbox, listen: Address) -> None:
    stop = asyncio.Event()
    # Its own sends end at the first signal.
    requests = StopRequests(SystemClock(), stop=stop.set, cut_off=stop.set)
    with stop_signals.following(asyncio.get_running_loop(), requests):
        try:
            async with sandbox.listen(listen) as url:
                click.echo(_opening(sandbox, url), nl=False)
                if not listen.is_loopback:
                    click.echo(_EXPOSED.format(listen=listen), err=True)
                await stop.wait()
        finally:
            await sandbox.close()


def _opening(sandbox: Sandbox, url: str) -> str:
    keys = sandbox.keys.create_missing()
    return _OPENING.format(
        url=url,
        speed=sandbox.schedule.speed,
        keys="\n".join(f"  {key.access:20}{key.value}" for key in keys),
        admin=keys[-1].value,
        give_up_s=math.ceil(GIVE_UP_S / sandbox.schedule.speed),
        kept=" and keeps its state" if sandbox.is_kept else "; its state is lost then",
    )
