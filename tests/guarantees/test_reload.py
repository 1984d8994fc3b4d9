"""A reload under load loses nothing, repeats nothing, and holds up no acknowledgement."""

import asyncio
import signal
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from statistics import median, quantiles

import httpx

from tests import service
from tests.guarantees import ledger
from tests.guarantees.conftest import Say
from tests.guarantees.destinations import Destination, Key
from tests.guarantees.pressure import Asked, Pressure
from tests.guarantees.process import Relay, http_client, until

RELOADS = 50
BROKEN_EVERY = 10
RATE = 150.0
PAUSE_S = 0.2
AFTER_S = 0.2
"""What a reload has begun goes on for a while after its answer: connections, leases."""
BACKLOG_S = 240.0

LIMIT_S = 0.25
FACTOR = 3.0
"""A machine that is slow without a reload too is judged by that."""

TOKEN = "the-token-of-the-guarantees"
ADMIN = f'[admin]\ntoken = "{TOKEN}"\n'
SINK = service.SINK.format(name="{name}", url="{url}", more="concurrency = {concurrency}")
KEPT_S = 5.0
"""So long httpx keeps a connection that nothing comes for."""


@dataclass
class Books:
    """When there were reloads in a row, with as long a rest after each row; and their verdicts."""

    rows: list[tuple[float, float]] = field(default_factory=list)
    took_s: list[float] = field(default_factory=list)
    refused: int = 0

    def row(self, asked: Asked) -> int | None:
        """Return the number of the row that went on when it was due."""
        went_on = (begin <= asked.due_s < end for begin, end in self.rows)
        return next((number for number, it_did in enumerate(went_on) if it_did), None)


async def test_fifty_reloads_under_load_lose_and_delay_nothing(tmp_path: Path, say: Say) -> None:
    async with AsyncExitStack() as stack:
        steady, changing, visiting = [
            await stack.enter_async_context(Destination(name))
            for name in ("steady", "changing", "visiting")
        ]
        relay = await stack.enter_async_context(Relay(tmp_path, sinks="", rest=ADMIN))
        client = await stack.enter_async_context(http_client())
        base = relay.config.read_text(encoding="utf-8")
        relay.config.write_text(base + _sinks(0, steady, changing, visiting), encoding="utf-8")
        await relay.start()
        pressure, stop, books = Pressure(relay.port, RATE), asyncio.Event(), Books()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(pressure.run(stop))
            for first in range(1, RELOADS + 1, BROKEN_EVERY):
                begun_s = time.monotonic()
                for turn in range(first, first + BROKEN_EVERY):
                    text = base + _sinks(turn, steady, changing, visiting)
                    await _reload(relay, client, text, turn, books=books)
                    await asyncio.sleep(PAUSE_S)
                books.rows.append((begun_s, time.monotonic() + AFTER_S))
                await asyncio.sleep(AFTER_S + BROKEN_EVERY * PAUSE_S)
            stop.set()
        # All sinks once more, so that what waits for the visitor is delivered.
        text = base + _sinks(0, steady, changing, visiting)
        await _reload(relay, client, text, 1, books=books)
        await _until_delivered(relay)
        # Those of a sink that stayed were let go only because nothing came for them.
        assert min(steady.idled_s, default=KEPT_S) >= KEPT_S > min(changing.idled_s)
        assert await relay.stop() == 0, relay.output()
    assert books.refused == RELOADS // BROKEN_EVERY
    assert len(relay.lines("config.refused")) == books.refused
    _prove_nothing_is_lost(pressure.asked, ledger.read(relay.store), steady, changing, visiting)
    say(_prove_nobody_is_held_up(pressure.asked, books))


async def _until_delivered(relay: Relay) -> None:
    # Seldom looked at, because counting takes the time that the destinations need.
    async with asyncio.timeout(BACKLOG_S):
        while ledger.pending(relay.store):
            await asyncio.sleep(0.5)


async def _reload(
    relay: Relay, client: httpx.AsyncClient, text: str, turn: int, *, books: Books
) -> None:
    """Nothing else is asked meanwhile: a scrape would cost more than the reload."""
    broken = turn % BROKEN_EVERY == 0
    relay.config.write_text(text + ("[[sink]]\n" if broken else ""), encoding="utf-8")
    begun_s = time.monotonic()
    answer = await client.post(
        f"{relay.admin_url}/-/reload", headers={"authorization": f"Bearer {TOKEN}"}
    )
    books.took_s.append(time.monotonic() - begun_s)
    assert answer.status_code == (422 if broken else 200), answer.text
    books.refused += broken


def _sinks(turn: int, steady: Destination, changing: Destination, visiting: Destination) -> str:
    """One sink that stays, one that is another one each time, and one that comes and goes."""
    tables = [
        SINK.format(name="steady", url=steady.url, concurrency=8),
        SINK.format(name="changing", url=f"{changing.url}/{turn}", concurrency=8),
    ]
    if turn % 2 == 0:
        tables.append(SINK.format(name="visiting", url=visiting.url, concurrency=8))
    return "".join(tables)


def _prove_nothing_is_lost(
    asked: Sequence[Asked],
    end: ledger.Ledger,
    steady: Destination,
    changing: Destination,
    visiting: Destination,
) -> None:
    keys = {each.key for each in asked}
    assert {each.status for each in asked} == {httpx.codes.ACCEPTED}
    assert end.events == keys
    assert set(end.deliveries.values()) == {"delivered"}
    wanted: dict[str, set[Key]] = {"steady": keys, "changing": keys, "visiting": set()}
    for sink, key in end.deliveries:
        if sink == "visiting":
            wanted["visiting"].add(key)
    assert 0 < len(wanted["visiting"]) < len(keys)
    for destination in (steady, changing, visiting):
        assert destination.taken.keys() == wanted[destination.name]
        assert set(destination.taken.values()) == {1}


def _prove_nobody_is_held_up(asked: Sequence[Asked], books: Books) -> str:
    """Judge the calmest row: a busy machine gives the relay no processor now and then.

    What a reload holds up, valid or refused, it holds up in every row.
    """
    apart = [each.seconds for each in asked if books.row(each) is None]
    rows = [
        row
        for number in range(len(books.rows))
        # Nothing came beside a reload during which the load had no processor.
        if (row := [each.seconds for each in asked if books.row(each) == number])
    ]
    beside = list(chain.from_iterable(rows))
    figures = (
        f"acknowledged among reloads in {_show(beside)}; between them in {_show(apart)}; slowest "
        f"of each row: {', '.join(f'{max(row) * 1000:.1f} ms' for row in rows)}"
    )
    assert min(map(max, rows)) < max(LIMIT_S, FACTOR * max(apart)), figures
    return (
        f"{len(books.took_s)} reloads ({books.refused} refused) of {median(books.took_s):.3f} s "
        f"while {len(asked)} events came at {RATE:g}/s: none lost, none twice; {figures}"
    )


def _show(seconds: Sequence[float]) -> str:
    facts = ((median, "median"), (_p99, "p99"), (max, "slowest"))
    return ", ".join(f"{name} {fact(seconds) * 1000:.1f} ms" for fact, name in facts)


def _p99(seconds: Sequence[float]) -> float:
    return quantiles(seconds, n=100)[-1]


async def test_sighup_reloads_and_never_ends_the_process(tmp_path: Path) -> None:
    async with Destination("crm") as crm, Relay(tmp_path, sinks="") as relay:
        await relay.start()
        text = relay.config.read_text(encoding="utf-8")
        relay.config.write_text(
            text + SINK.format(name="crm", url=crm.url, concurrency=1), encoding="utf-8"
        )
        relay.signal(signal.SIGHUP)
        await until(lambda: bool(relay.lines("config.reloaded")), what="the reload")
        assert await relay.metric("relay_sink_state", sink="crm", state="active") == 1
        relay.config.write_text("half", encoding="utf-8")
        relay.signal(signal.SIGHUP)
        await until(lambda: bool(relay.lines("config.refused")), what="the refusal")
        assert await relay.metric("relay_config_last_reload_successful") == 0
        assert await relay.is_ready()
        assert await relay.stop() == 0
