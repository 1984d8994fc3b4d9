"""What can happen to a cluster: each fault does its damage, and repairs it."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.guarantees import faulty_disk
from tests.guarantees.cluster.cluster import Cluster
from tests.guarantees.cluster.pair import Pair
from tests.guarantees.process import Relay, until

Fault = Callable[[Cluster], Awaitable[None]]

STOPPED_S = 30.0


async def kill_relay(cluster: Cluster, *, away_s: float | None = None) -> None:
    """Restart it at any moment: before another relay has taken over, or long after."""
    async with cluster.fault("SIGKILL of a relay"):
        relay = cluster.random.choice(cluster.relays)
        await relay.kill()
        await asyncio.sleep(cluster.random.uniform(0, 16) if away_s is None else away_s)
        await relay.start()


async def stop_relay(cluster: Cluster, *, for_s: float = STOPPED_S) -> None:
    async with cluster.fault("SIGSTOP of a relay"):
        relay = cluster.random.choice(cluster.relays)
        relay.signal(signal.SIGSTOP)
        await asyncio.sleep(for_s)
        relay.signal(signal.SIGCONT)
        await until(relay.is_ready, what="/readyz after SIGCONT")


async def kill_postmaster(cluster: Cluster) -> None:
    async with cluster.fault("SIGKILL of the postmaster"):
        await asyncio.to_thread(cluster.server.kill)
        await asyncio.sleep(cluster.random.uniform(0, 3))
        await asyncio.to_thread(cluster.server.start)
        await cluster.until_ready()


async def restart_server(cluster: Cluster) -> None:
    async with cluster.fault("immediate restart"):
        await asyncio.to_thread(cluster.server.restart)
        await cluster.until_ready()


async def terminate_connections(cluster: Cluster) -> None:
    async with cluster.fault("pg_terminate_backend of all"):
        await asyncio.to_thread(
            cluster.place.rows,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()",
        )
        await cluster.until_ready()


async def promote(cluster: Cluster, pair: Pair) -> None:
    """Kill the primary, and put a new replica in its place once all is well."""
    async with cluster.fault("promotion of the replica"):
        await asyncio.to_thread(pair.promote)
        cluster.place.server = pair.primary
        await cluster.until_ready()
        await asyncio.to_thread(pair.follow)


class FaultyDisk:
    """The disk of servers that are started with `environ`."""

    def __init__(self, folder: Path) -> None:
        self._trouble = folder / "trouble"
        library = faulty_disk.build(folder)
        self.environ = {"LD_PRELOAD": str(library), "RELAY_FAULT": str(self._trouble)}

    def fill(self) -> None:
        faulty_disk.let(self._trouble, "full")

    def make_room(self) -> None:
        self._trouble.unlink()


async def fill_disk(cluster: Cluster, disk: FaultyDisk, pair: Pair) -> None:
    """Fill it until requests are refused, and start again what has ended by that."""
    async with cluster.fault("full disk"):
        refused = cluster.load.answers["503"]
        disk.fill()
        await until(lambda: cluster.load.answers["503"] > refused + 5, what="503 for a full disk")
        disk.make_room()

        async def is_well() -> bool:
            # The replica may end later, at what it had received but not written.
            await asyncio.to_thread(pair.start_again)
            return all([await relay.is_ready() for relay in cluster.relays])

        await until(is_well, what="/readyz of all relays after a full disk")


async def taken_over(cluster: Cluster, sink: str, lost: Relay) -> None:
    """Wait until another relay owns the sink."""

    async def is_so() -> bool:
        owner = (await asyncio.to_thread(cluster.owners)).get(sink)
        return owner is not None and owner is not lost

    await until(is_so, what=f"another owner of {sink} than {lost.config.parent.name}")
