"""Does to a cluster what the world may do, at random moments, and prints what it found.

Run `python -m tests.guarantees.cluster.trial [ROUNDS] [SEED]`; a round is one fault. It takes about
10 s a round, and the seed says which faults come in which order.
"""

import asyncio
import sys
import time
from functools import partial
from pathlib import Path
from random import Random, SystemRandom

from tests import scratch
from tests.guarantees.cluster import checker, faults
from tests.guarantees.cluster.cluster import Cluster, cluster
from tests.guarantees.cluster.faults import Fault, FaultyDisk
from tests.guarantees.cluster.pair import Pair

ROUNDS = 60
QUIET_S = 3.0
"""Longest pause between two faults."""


async def trial(folder: Path, *, rounds: int, seed: int) -> str:
    """Return a summary after so many faults; raises AssertionError where an invariant is broken."""
    random = Random(seed)
    disk = FaultyDisk(folder)
    with Pair(folder, environ=disk.environ) as pair:
        kinds: list[Fault] = [
            faults.kill_relay,
            faults.stop_relay,
            faults.kill_postmaster,
            faults.restart_server,
            faults.terminate_connections,
            partial(faults.promote, pair=pair),
            partial(faults.fill_disk, disk=disk, pair=pair),
        ]
        # Each kind as often as the others, in any order.
        order = [kinds[number % len(kinds)] for number in range(rounds)]
        random.shuffle(order)
        async with cluster(folder, pair.primary, random=random, dsn=pair.dsn) as three:
            async with three.under_load():
                for fault in order:
                    await asyncio.sleep(random.uniform(0, QUIET_S))
                    await fault(three)
                    _say(three)
            await three.settle()
            return checker.check(three)


def _say(three: Cluster) -> None:
    fault = three.faults[-1]
    took_s = fault.until_s - fault.from_s
    sys.stdout.write(
        f"{len(three.faults):3} {fault.name:26} {took_s:5.1f} s, "
        f"{len(three.load.acknowledged)} acknowledged\n"
    )
    sys.stdout.flush()


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else SystemRandom().randrange(1 << 32)
    sys.stdout.write(f"{rounds} faults, seed {seed}\n")
    began_s = time.monotonic()
    with scratch.on_disk() as folder:
        said = asyncio.run(trial(Path(folder), rounds=rounds, seed=seed))
    sys.stdout.write(f"{said}\n{time.monotonic() - began_s:.0f} s\n")


if __name__ == "__main__":
    main()
