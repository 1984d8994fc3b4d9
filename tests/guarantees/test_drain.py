"""SIGTERM cuts nothing off, and what keeps a relay from starting is said in a line."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import httpx
import orjson
import pytest

from relay.core import signature
from relay.store.rows import digest
from relay.store.sqlite.driver import sqlite3
from tests import service
from tests.guarantees import ledger
from tests.guarantees.conftest import Say
from tests.guarantees.destinations import FAILING, HANGING, WELL, Destination, Mood
from tests.guarantees.process import SECRET, Relay, until
from tests.guarantees.traffic import lead, post

STORED = 200_000

SINK = service.SINK.format(name="crm", url="{url}", more='timeout = "30s"')


@asynccontextmanager
async def _running(
    folder: Path, destination: Destination, *, drain_timeout: str = "10s"
) -> AsyncIterator[Relay]:
    server = f'drain_timeout = "{drain_timeout}"'
    async with (
        destination,
        Relay(folder, sinks=SINK.format(url=destination.url), server=server) as relay,
    ):
        await relay.start()
        yield relay


def _request(body: bytes) -> bytes:
    signed = signature.header(SECRET.encode(), now_s=int(time.time()), body=body)
    head = (
        "POST /webhooks HTTP/1.1\r\nhost: relay\r\n"
        f"content-length: {len(body)}\r\nservice-signature: {signed}\r\n\r\n"
    )
    return head.encode() + body


async def _is_closed(relay: Relay) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", relay.port)
    except ConnectionRefusedError:
        return True
    writer.transport.abort()
    return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_request_in_flight_gets_its_answer_while_the_public_side_is_closed(
    tmp_path: Path, number: signal.Signals
) -> None:
    async with _running(tmp_path, Destination("crm")) as relay:
        request = _request(lead("evt_in_flight"))
        reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
        writer.write(request[:-10])
        await writer.drain()
        # Known to have been read: an answer on another connection came later.
        assert (await post(relay.url, lead("evt_before"))).status_code == 202
        relay.signal(number)
        await until(lambda: _is_closed(relay), what="the end of the public side")
        assert await relay.problems() == ["the relay is stopping"]
        writer.write(request[-10:])
        assert b" 202 " in await reader.readline()
        writer.close()
        assert await relay.exit() == 0
    assert ("main", "evt_in_flight") in ledger.read(relay.store).events


async def test_a_running_send_gets_its_grace_and_is_settled(tmp_path: Path) -> None:
    destination = Destination("crm", Mood(delay_s=1.0))
    async with _running(tmp_path, destination) as relay:
        await post(relay.url, lead("evt_running"))
        await until(lambda: bool(destination.open()), what="the send")
        assert await relay.stop() == 0
        assert ledger.read(relay.store).places("delivered") == {("crm", ("main", "evt_running"))}
        await relay.start()
        assert await relay.stop() == 0
        assert destination.taken.total() == len(destination.arrivals) == 1


async def test_a_send_that_outlasts_the_grace_comes_due_again(tmp_path: Path) -> None:
    destination = Destination("crm", HANGING)
    async with _running(tmp_path, destination, drain_timeout="500ms") as relay:
        await post(relay.url, lead("evt_long"))
        await until(lambda: bool(destination.open()), what="the send")
        relay.signal(signal.SIGTERM)
        # The sink's own timeout is 30 s; only the grace can have ended it.
        assert await relay.exit(deadline_s=10) == 0
        destination.mood = WELL
        await relay.start()
        await until(lambda: bool(destination.taken), what="the delivery after the restart")


async def test_a_second_signal_cuts_the_sends_off_and_requests_are_still_answered(
    tmp_path: Path,
) -> None:
    destination = Destination("crm", HANGING)
    async with _running(tmp_path, destination, drain_timeout="60s") as relay:
        await post(relay.url, lead("evt_long"))
        await until(lambda: bool(destination.open()), what="the send")
        request = _request(lead("evt_in_flight"))
        reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
        writer.write(request[:-10])
        await writer.drain()
        assert (await post(relay.url, lead("evt_before"))).status_code == 202
        relay.signal(signal.SIGINT)
        await until(lambda: bool(relay.lines("relay.draining")), what="the drain")
        first_s = time.monotonic()
        # The terminal's and the supervisor's.
        relay.signal(signal.SIGTERM)
        await until(lambda: time.monotonic() > first_s + 1, what="a second")
        assert not relay.lines("sends.cut_off")
        relay.signal(signal.SIGTERM)
        await until(lambda: bool(relay.lines("sends.cut_off")), what="the end of the sends")
        writer.write(request[-10:])
        assert b" 202 " in await reader.readline()
        writer.close()
        assert await relay.exit(deadline_s=30) == 0
        (line,) = relay.lines("sends.cut_off")
        assert line["counts"] == f"crm {line['count']}"
        ids = {("main", each) for each in ("evt_long", "evt_before", "evt_in_flight")}
        assert ledger.read(relay.store).events >= ids
        destination.mood = WELL
        await relay.start()
        await until(lambda: len(destination.taken) == 3, what="the deliveries after the restart")
        assert await relay.stop() == 0


async def test_a_clean_stop_needs_no_check_at_the_next_start(tmp_path: Path) -> None:
    async with _running(tmp_path, Destination("crm")) as relay:
        await post(relay.url, lead("evt_1"))
        assert await relay.stop() == 0
        await relay.start()
        assert not relay.lines("store.unclean")
        await relay.kill()
        await relay.start()
        await until(lambda: bool(relay.lines("store.sound")), what="the check after a kill")
        assert await relay.stop() == 0


async def test_a_second_relay_on_the_store_is_refused(tmp_path: Path) -> None:
    async with _running(tmp_path, Destination("crm")) as relay:
        (tmp_path / "second").mkdir()
        second = Relay(tmp_path / "second", sinks="", data=relay.store.parent)
        await second.spawn()
        assert await second.exit() == os.EX_TEMPFAIL
        held = f"another relay holds the store {relay.store}; stop that one, or change store.path"
        assert second.output().endswith(f"relay: {held}\n")
        assert (await post(relay.url, lead("evt_1"))).status_code == httpx.codes.ACCEPTED


async def test_a_bad_config_is_refused_with_every_fault(tmp_path: Path) -> None:
    relay = Relay(tmp_path, sinks="", server='drain = "10s"\nmax_body = "much"')
    await relay.spawn()
    assert await relay.exit() == os.EX_CONFIG
    lines = relay.output().splitlines()
    assert [line.split(": ")[2] for line in lines] == ["server.max_body", "server.drain"]
    assert not relay.store.exists()


async def test_a_store_of_a_newer_relay_is_left_alone(tmp_path: Path) -> None:
    async with _running(tmp_path, Destination("crm")) as relay:
        assert await relay.stop() == 0
        with closing(sqlite3.connect(relay.store)) as db, db:
            db.execute("INSERT INTO migrations VALUES (9999, '9999_later.sql', '', 0)")
        before = _dump(relay.store)
        await relay.spawn()
        assert await relay.exit() == os.EX_CONFIG
        assert "schema is number 9999" in relay.output().splitlines()[-1]
        assert "Traceback" not in relay.output(last=1 << 20)
        assert _dump(relay.store) == before


async def test_an_address_in_use_is_named(tmp_path: Path) -> None:
    async with _running(tmp_path, Destination("crm")) as relay:
        (tmp_path / "second").mkdir()
        second = Relay(tmp_path / "second", sinks="")
        second.config.write_text(
            second.config.read_text().replace(f":{second.port}", f":{relay.port}")
        )
        await second.spawn()
        assert await second.exit() == os.EX_OSERR
        assert f"cannot listen on 127.0.0.1:{relay.port}" in second.output()
        assert "Traceback" not in second.output(last=1 << 20)


async def test_a_large_backlog_does_not_delay_the_start(tmp_path: Path, say: Say) -> None:
    destination = Destination("crm", FAILING)
    async with _running(tmp_path, destination) as relay:
        assert await relay.stop() == 0
        _store_many(relay.store)
        started_s = time.monotonic()
        await relay.start()
        seconds = time.monotonic() - started_s
        assert await relay.metric("relay_pending_deliveries", sink="crm") == STORED
        await until(lambda: bool(destination.arrivals), what="the first of the backlog")
        oldest = {("main", f"old_{number}") for number in range(32)}
        assert destination.arrivals[0].key in oldest
        assert (await post(relay.url, lead("evt_new"))).status_code == httpx.codes.ACCEPTED
        assert await relay.stop() == 0
    say(f"ready after {seconds:.2f} s with {STORED} pending deliveries")


def _dump(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as db:
        return list(db.iterdump())


def _store_many(path: Path) -> None:
    now_ms = int(time.time() * 1000)
    with closing(sqlite3.connect(path)) as db, db:
        bodies = (
            (number, orjson.dumps({"id": f"old_{number}", "event": "video.created", "data": {}}))
            for number in range(STORED)
        )
        db.executemany(
            "INSERT INTO events (source, id, kind, received_at, digest, body) "
            "VALUES ('main', ?, 'video.created', ?, ?, ?)",
            ((f"old_{number}", now_ms, digest(body), body) for number, body in bodies),
        )
        db.execute(
            "INSERT INTO deliveries (event, sink, status, due_at) "
            "SELECT seq, 'crm', 'pending', ? FROM events",
            (now_ms,),
        )
