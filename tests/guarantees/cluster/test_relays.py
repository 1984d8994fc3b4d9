"""Relays that die, stop or restart lose nothing, and send nothing beside a sink's owner."""

import signal
import time
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from tests.guarantees.cluster import checker, faults, restarts
from tests.guarantees.cluster.cluster import Cluster, cluster
from tests.guarantees.cluster.sinks import CONCURRENCY, Weather
from tests.guarantees.conftest import Say
from tests.guarantees.destinations import Key
from tests.guarantees.process import until
from tests.store.places import shared_server

pytestmark = pytest.mark.servers


async def test_a_killed_relay_loses_nothing_and_its_sinks_are_taken_over(
    tmp_path: Path, random: Random, say: Say
) -> None:
    async with cluster(tmp_path, shared_server(), random=random) as three:
        async with three.under_load():
            await three.until_owned()
            (sink, relay), *_ = three.owners().items()
            async with three.fault("SIGKILL of a relay"):
                await relay.kill()
            killed_s = time.monotonic()
            await faults.taken_over(three, sink, relay)
            took_s = time.monotonic() - killed_s
            await relay.start()
        await three.settle()
        say(f"taken over after {took_s:.1f} s; {checker.check(three)}")


async def test_a_relay_that_was_stopped_settles_nothing_and_sends_only_what_it_had_begun(
    tmp_path: Path, random: Random, say: Say
) -> None:
    async with cluster(tmp_path, shared_server(), random=random) as three:
        destination = next(each for each in three.destinations if each.name == "steady")
        async with three.under_load():
            destination.slowest_s = 1.0
            await until(
                lambda: len(destination.open()) > CONCURRENCY / 2, what="requests under way"
            )
            # Not before: a relay that has just come may still be given the sink.
            await three.until_owned()
            relay = three.owners()[destination.name]
            async with three.fault("SIGSTOP of a relay"):
                relay.signal(signal.SIGSTOP)
                await until(lambda: not destination.open(), what="the answers to what it had begun")
                begun = _unrecorded(three, destination)
                destination.slowest_s = 0.04
                await faults.taken_over(three, destination.name, relay)
                await three.under_way(5)
                relay.signal(signal.SIGCONT)
                await until(relay.is_ready, what="/readyz after SIGCONT")
        await three.settle()
        stored = checker.read(three.place)
        assert begun
        # Were one of them settled after all, each of its requests would be stored.
        came = Counter(each.key for each in destination.arrivals)
        later = {key: stored.attempts[destination.name, key] for key in begun}
        assert later == {key: came[key] - begun[key] for key in begun}
        strays = [
            each for name, each in checker.stray_arrivals(three, stored) if name == destination.name
        ]
        assert len(strays) <= CONCURRENCY
        say(f"{begun.total()} were begun, {len(strays)} came later; {checker.check(three)}")


def _unrecorded(three: Cluster, destination: Weather) -> Counter[Key]:
    """Count the requests of which the database knows no outcome."""
    attempts = checker.read(three.place).attempts
    came = Counter(each.key for each in destination.arrivals)
    return came - Counter({key: attempts[destination.name, key] for key in came})


async def test_relays_restart_in_turn_under_300_requests_a_second_without_a_failed_one(
    tmp_path: Path, random: Random, say: Say
) -> None:
    async with cluster(tmp_path, shared_server(), random=random) as three:
        say(await restarts.in_turn(three, rate=300))
