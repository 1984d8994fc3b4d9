"""A database that is killed, restarted, full or replaced by its replica costs no event."""

from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest

from tests.guarantees.cluster import checker, faults
from tests.guarantees.cluster.cluster import Cluster, cluster
from tests.guarantees.cluster.faults import Fault, FaultyDisk
from tests.guarantees.cluster.pair import Pair
from tests.guarantees.conftest import Say
from tests.postgres.server import PostgresServer

pytestmark = pytest.mark.servers


@pytest.fixture
async def three(tmp_path: Path, random: Random) -> AsyncIterator[Cluster]:
    server = PostgresServer(tmp_path)
    server.create()
    server.start()
    async with cluster(tmp_path, server, random=random) as three:
        yield three
    server.stop()


@pytest.mark.parametrize(
    "fault", [faults.kill_postmaster, faults.restart_server, faults.terminate_connections]
)
async def test_a_database_that_fails_loses_nothing(three: Cluster, fault: Fault, say: Say) -> None:
    async with three.under_load():
        await fault(three)
        await three.under_way()
    await three.settle()
    say(checker.check(three))


async def test_a_full_disk_of_the_database_loses_nothing(
    tmp_path: Path, random: Random, say: Say
) -> None:
    disk = FaultyDisk(tmp_path)
    with Pair(tmp_path, environ=disk.environ) as pair:
        async with cluster(tmp_path, pair.primary, random=random, dsn=pair.dsn) as three:
            async with three.under_load():
                await faults.fill_disk(three, disk, pair)
                await three.under_way()
            await three.settle()
            assert three.load.answers["503"]
            say(checker.check(three))


async def test_a_replica_that_is_promoted_has_all_that_was_acknowledged(
    tmp_path: Path, random: Random, say: Say
) -> None:
    with Pair(tmp_path) as pair:
        async with cluster(tmp_path, pair.primary, random=random, dsn=pair.dsn) as three:
            async with three.under_load():
                await faults.promote(three, pair)
                await three.under_way()
            await three.settle()
            say(checker.check(three))
