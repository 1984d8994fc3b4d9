"""A write-ahead log that is taken away from a relay under load: no 2xx depends on it any more."""

import asyncio
import os
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import pytest

from relay.core.clock import SystemClock
from relay.core.config_values import Size
from relay.core.event import LEAD_CAPTURED
from relay.store.sqlite.opening import open_store
from relay.store.sqlite.settings import SqliteSettings
from tests import service
from tests.guarantees import ledger
from tests.guarantees.conftest import Say
from tests.guarantees.destinations import Destination
from tests.guarantees.process import Relay, until
from tests.guarantees.traffic import Traffic

SINK = service.SINK.format(name="crm", url="{url}", more="")
CONNECTIONS = 4
ONE_FRAME_BYTES = 32 + 24 + 4096
"""A log's head, and a first page with its own."""

AFTERWARDS = 60
"""Events per connection that are sent after the fault, unless the relay is gone before."""


def _remove(log: Path) -> None:
    log.unlink()


def _replace(log: Path) -> None:
    shutil.copy(log, log.with_name("other"))
    log.with_name("other").rename(log)


def _empty(log: Path) -> None:
    os.truncate(log, 0)


def _cut(log: Path) -> None:
    os.truncate(log, ONE_FRAME_BYTES)


def _zero(log: Path) -> None:
    with log.open("r+b", buffering=0) as file:
        file.write(bytes(log.stat().st_size))


class Load:
    """Connections that send one event after the other, and what each was answered."""

    def __init__(self, relay: Relay, traffic: Traffic) -> None:
        self._relay = relay
        self._traffic = traffic
        self.answers: list[tuple[str, float, int | None]] = []
        """Id, the time at which it was sent, and the status."""
        self.fault_s: float | None = None

    async def send(self) -> None:
        left = AFTERWARDS
        while self._relay.running and left:
            event_id, sent_s = self._traffic.next_id, time.monotonic()
            status = await self._traffic.attempt(LEAD_CAPTURED)
            self.answers.append((event_id, sent_s, status))
            left -= self.fault_s is not None

    def is_refused(self) -> bool:
        return any(status != 202 for *_, status in self.answers)

    def acknowledged(self, *, after_s: float = 0.0) -> set[str]:
        return {
            event_id
            for event_id, sent_s, status in self.answers
            if status == 202 and sent_s >= after_s
        }


async def _create(path: Path) -> None:
    """Put the tables into the database, so that the log has only what follows."""
    path.parent.mkdir(mode=0o700)
    settings = SqliteSettings(path=str(path), min_free=Size.parse("1B"))
    await (await open_store(settings, clock=SystemClock())).close()


@pytest.mark.parametrize(
    ("spoil", "is_killed"),
    [
        *((_remove, False), (_replace, False), (_empty, False), (_cut, False), (_zero, False)),
        # Not a removed log, whose content is being saved then: a kill amid that tears the database.
        *((_cut, True), (_zero, True)),
    ],
    ids=lambda value: ("killed at once" if value else "left alone") if value in (0, 1) else None,
)
async def test_nothing_is_acknowledged_once_the_log_was_damaged_under_load(
    tmp_path: Path, random: Random, say: Say, spoil: Callable[[Path], None], *, is_killed: bool
) -> None:
    async with (
        Destination("crm") as destination,
        Relay(tmp_path, sinks=SINK.format(url=destination.url)) as relay,
        Traffic(relay.url, time_scale=0.02, random=random) as traffic,
    ):
        await _create(relay.store)
        await relay.start()
        load = Load(relay, traffic)
        async with asyncio.TaskGroup() as sending:
            for _ in range(CONNECTIONS):
                sending.create_task(load.send())
            await until(lambda: len(load.answers) > 50 + random.randrange(100), what="a load")
            log = relay.store.with_name("relay.db-wal")
            spoil(log)
            load.fault_s = time.monotonic()
            if spoil is _cut:
                # Right after a checkpoint the log is no longer than that.
                again = partial(spoil, log)
                await until(lambda: load.is_refused() or again() is not None, what="a real cut")
            if is_killed:
                await until(load.is_refused, what="an answer that is no 202")
                if relay.running:
                    await relay.kill()
        if not is_killed:
            assert await relay.exit() == os.EX_IOERR
            # One that reads may meet the damage before the look of the one that writes.
            assert len(relay.lines("store.broken")) == 1
        assert "Traceback" not in relay.output(last=1 << 20)
        promised = load.acknowledged(after_s=load.fault_s)
        found = {event_id for _, event_id in ledger.read(relay.store).events}
        say(f"{spoil.__name__[1:]}: {len(promised)} of {len(load.answers)} acknowledged after it")
        assert promised <= found
        if spoil in (_remove, _replace):
            assert not promised
            assert load.acknowledged() <= found
        await relay.start()
        assert await traffic.send(LEAD_CAPTURED)
        assert await relay.stop() == 0
