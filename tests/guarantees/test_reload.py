"""A reload under load loses nothing, repeats nothing, and holds up no acknowledgement."""

import asyncio
import signal
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from tests.guarantees import ledger
from tests.guarantees.conftest import Say
from tests.guarantees.far_ends import FarEnd, Key
from tests.guarantees.pressure import Asked, Pressure
from tests.guarantees.process import Relay, http_client, until

RELOADS = 50
BROKEN_EVERY = 10
RATE = 500.0
PAUSE_S = 0.4
CONTROL_S = 8.0

LIMIT_S = 0.25
FACTOR = 1.5
"""A machine that is so busy that it is slow without a reload may be a little slower with one."""

TOKEN = "the-token-of-the-guarantees"
ADMIN = f'[admin]\ntoken = "{TOKEN}"\n'
SINK = """
[[sink]]
name = "{name}"
type = "http"
url = "{url}"
concurrency = {concurrency}
"""
STEADY = 8


@dataclass
class Books:
    """Each reload's time, and how it was answered."""

    spans: list[tuple[float, float]] = field(default_factory=list)
    refused: int = 0


async def test_fifty_reloads_under_load_lose_nothing_and_hold_up_nobody(
    tmp_path: Path, say: Say
) -> None:
    async with AsyncExitStack() as stack:
        steady, changing, visiting = [
            await stack.enter_async_context(FarEnd(name))
            for name in ("steady", "changing", "visiting")
        ]
        relay = await stack.enter_async_context(Relay(tmp_path, sinks="", rest=ADMIN))
        base = relay.config.read_text(encoding="utf-8")
        relay.config.write_text(base + _sinks(0, steady, changing, visiting), encoding="utf-8")
        await relay.start()
        pressure, stop, books = Pressure(relay.port, RATE), asyncio.Event(), Books()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(pressure.run(stop))
            await asyncio.sleep(CONTROL_S)
            for turn in range(1, RELOADS + 1):
                await _reload(
                    relay, base + _sinks(turn, steady, changing, visiting), turn, books=books
                )
                await asyncio.sleep(PAUSE_S)
            stop.set()
        # All sinks once more, so that what waits for the visitor is delivered.
        await _reload(relay, base + _sinks(0, steady, changing, visiting), 1, books=books)
        await until(lambda: not ledger.pending(relay.store), what="the end of the backlog")
        assert await relay.stop() == 0, relay.output()
    assert books.refused == RELOADS // BROKEN_EVERY
    assert len(relay.lines("config.refused")) == books.refused
    _prove_nothing_is_lost(pressure.asked, ledger.read(relay.store), steady, changing, visiting)
    assert steady.accepted <= STEADY
    say(_prove_nobody_is_held_up(pressure.asked, books))


async def _reload(relay: Relay, text: str, turn: int, *, books: Books) -> None:
    broken = turn % BROKEN_EVERY == 0
    relay.config.write_text(text + ("[[sink]]\n" if broken else ""), encoding="utf-8")
    async with http_client() as client:
        begun_s = time.monotonic()
        answer = await client.post(
            f"{relay.admin_url}/-/reload", headers={"authorization": f"Bearer {TOKEN}"}
        )
        books.spans.append((begun_s, time.monotonic()))
    assert answer.status_code == (422 if broken else 200), answer.text
    books.refused += broken
    assert await relay.metric("relay_config_last_reload_successful") == (not broken)


def _sinks(turn: int, steady: FarEnd, changing: FarEnd, visiting: FarEnd) -> str:
    """One sink that stays, one that is another one each time, and one that comes and goes."""
    tables = [
        SINK.format(name="steady", url=steady.url, concurrency=STEADY),
        SINK.format(name="changing", url=f"{changing.url}/{turn}", concurrency=8),
    ]
    if turn % 2 == 0:
        tables.append(SINK.format(name="visiting", url=visiting.url, concurrency=8))
    return "".join(tables)


def _prove_nothing_is_lost(
    asked: Sequence[Asked],
    end: ledger.Ledger,
    steady: FarEnd,
    changing: FarEnd,
    visiting: FarEnd,
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
    for far_end in (steady, changing, visiting):
        assert far_end.taken.keys() == wanted[far_end.name]
        assert set(far_end.taken.values()) == {1}


def _prove_nobody_is_held_up(asked: Sequence[Asked], books: Books) -> str:
    first_s = books.spans[0][0]
    before = sorted(each.seconds for each in asked if each.due_s + each.seconds < first_s)
    during = sorted(each.seconds for each in asked if each.due_s + each.seconds >= first_s)
    assert during[-1] < max(LIMIT_S, FACTOR * before[-1])
    took_s = sorted(end_s - begin_s for begin_s, end_s in books.spans)
    return (
        f"{len(books.spans)} reloads ({books.refused} refused) of {took_s[len(took_s) // 2]:.3f} s "
        f"while {len(asked)} events came at {RATE:g}/s: none lost, none twice; acknowledged in "
        f"{_show(during)}; without reloads in {_show(before)}"
    )


def _show(seconds: Sequence[float]) -> str:
    ranks = ((len(seconds) // 2, "median"), (len(seconds) * 99 // 100, "p99"), (-1, "slowest"))
    return ", ".join(f"{name} {seconds[rank] * 1000:.1f} ms" for rank, name in ranks)


async def test_sighup_reloads_and_never_ends_the_process(tmp_path: Path) -> None:
    async with FarEnd("crm") as crm, Relay(tmp_path, sinks="") as relay:
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
