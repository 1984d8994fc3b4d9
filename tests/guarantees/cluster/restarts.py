"""Restarts the relays of a cluster in turn, under a steady load, and prints what it found.

Run `python -m tests.guarantees.cluster.restarts [RATE]`; it fails if the rate was not reached.
"""

import asyncio
import sys
import time
from pathlib import Path
from random import Random

from tests import scratch
from tests.guarantees.cluster import checker
from tests.guarantees.cluster.cluster import Cluster, cluster
from tests.guarantees.cluster.load import steady
from tests.postgres.server import PostgresServer

RATE = 300
CONNECTIONS = 64
REACHED = 0.97
"""Share of the rate that the script demands: a machine that is busy sends less."""


async def in_turn(three: Cluster, *, rate: float) -> str:
    """Return a summary; raises AssertionError where a request was not answered 202."""
    async with three.under_load(steady(rate), flows=CONNECTIONS):
        began_s, before = time.monotonic(), three.load.answers.total()
        for relay in three.relays:
            async with three.fault("restart"):
                assert await relay.stop() == 0, relay.output()
                await relay.start()
            await three.under_way()
        took_s, sent = time.monotonic() - began_s, three.load.answers.total() - before
    await three.settle()
    assert set(three.load.answers) == {"202"}, three.load.answers
    return f"{sent / took_s:.1f} requests a second for {took_s:.0f} s; {checker.check(three)}"


async def trial(folder: Path, *, rate: float) -> str:
    """Restart the relays of a new cluster."""
    server = PostgresServer(folder)
    server.create()
    server.start()
    try:
        async with cluster(folder, server, random=Random(1)) as three:
            return await in_turn(three, rate=rate)
    finally:
        server.stop()


def main() -> None:
    rate = float(sys.argv[1]) if len(sys.argv) > 1 else RATE
    with scratch.on_disk() as folder:
        said = asyncio.run(trial(Path(folder), rate=rate))
    sys.stdout.write(f"{said}\n")
    if float(said.split()[0]) < REACHED * rate:
        sys.exit(f"fewer than {REACHED:.0%} of {rate:.0f} requests a second")


if __name__ == "__main__":
    main()
