"""The rows of hostile-requests.md, section 7, that are about how the relay is run."""

import asyncio
import contextlib
import importlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from relay.core.errors import ConfigError, StoreBroken, StoreError, StoreFull
from relay.store.sqlite.driver import sqlite3
from relay.store.sqlite.store import SqliteStore
from tests import service
from tests.caller import PATH, PATIENCE_S, SECRET, Answer, post, signed
from tests.receiver.hostile import EVENT, UNAUTHORIZED
from tests.receiver.rows import COVERED, row
from tests.service import OTHER_SECRET, Relay, ShiftedClock
from tests.stub_server import StubServer, until

DAY_S = 86_400

OTHER_SOURCE = """
[[source]]
name = "other"
path = "/other"
secrets = ["env:OTHER_SECRET"]
"""


@pytest.fixture(autouse=True)
def _row() -> None:
    """Takes the numbers that `row` puts into a test's id."""


@pytest.fixture
async def relay(tmp_path: Path) -> AsyncIterator[Relay]:
    async with service.serving(service.read(tmp_path)) as relay:
        yield relay


def by(secret: str, *, target: str = PATH, at_s: int | None = None) -> bytes:
    """The event, signed with a secret."""
    header = signed(EVENT, secret=secret, at_s=at_s)
    return post(EVENT, ("Service-Signature", header), target=target, sign=False)


@row(21)
@pytest.mark.parametrize(
    ("hours", "reason", "bound"), [(1, "stale", "+Inf"), (-1, "future", "-600.0")]
)
async def test_a_wrong_clock_of_the_relay_shows_in_reason_and_skew(
    tmp_path: Path, hours: int, reason: str, bound: str
) -> None:
    clock = ShiftedClock()
    clock.shift_s = hours * 3_600
    async with service.serving(service.read(tmp_path), clock=clock) as relay:
        assert (await relay.ask(post(EVENT))).status == 401
        assert await relay.counts("relay_rejected_total") == {(reason, "main"): 1}
        skews = await relay.counts("relay_signature_skew_seconds_bucket")
        assert next(iter(skews)) == (bound, "main")
        (line,) = relay.lines("request.refused")
        assert line["skew_s"] == pytest.approx(hours * 3_600, abs=2)


@row(39)
async def test_a_request_is_stale_long_before_its_id_is_forgotten(
    tmp_path: Path, destination: StubServer
) -> None:
    clock = ShiftedClock()
    async with service.serving(
        service.read(tmp_path, destination=destination), clock=clock
    ) as relay:
        captured = post(EVENT)
        assert (await relay.ask(captured)).status == 202
        await relay.until_counted("relay_deliveries_total", "delivered", "all")
        clock.shift_s = 91 * DAY_S
        async with asyncio.timeout(PATIENCE_S):
            # The relay's own round may be half over, so that one round of ours need not be enough.
            while relay.stored():
                await relay.service._store.expire(now_ms=clock.now_ms())
        assert (await relay.ask(captured)).status == 401
        assert await relay.counts("relay_rejected_total") == {("stale", "main"): 1}


@row(51)
@pytest.mark.parametrize(
    "secret", ["", " ", "\\n", "short", "changeme", "<your-secret>", "xxxxxxxxx"]
)
def test_a_source_with_a_weak_secret_is_refused_at_the_start(tmp_path: Path, secret: str) -> None:
    weak = OTHER_SOURCE.replace("env:OTHER_SECRET", secret)
    with pytest.raises(ConfigError, match=r"source\[1\] \(other\)\.secrets\[0\]: ") as caught:
        service.read(tmp_path, tables=weak)
    assert len(caught.value.faults) == 1


@row(51, 52)
@pytest.mark.parametrize("secret", ["", "given-by-the-caller"])
async def test_no_secret_but_the_configured_one_verifies(relay: Relay, secret: str) -> None:
    given = [("Secret", secret), ("X-Signing-Secret", secret), ("Authorization", secret)]
    header = ("Service-Signature", signed(EVENT, secret=secret))
    target = f"{PATH}?secret={secret}&signing_secret={secret}"
    answer = await relay.ask(post(EVENT, header, *given, target=target, sign=False))
    assert (answer.status, answer.body) == (401, UNAUTHORIZED)
    assert await relay.counts("relay_rejected_total") == {("mismatch", "main"): 1}


@row(53)
async def test_a_request_signed_for_one_source_is_refused_by_another(tmp_path: Path) -> None:
    async with service.serving(service.read(tmp_path, tables=OTHER_SOURCE)) as relay:
        assert (await relay.ask(by(SECRET, target="/other"))).body == UNAUTHORIZED
        assert (await relay.ask(by(OTHER_SECRET))).body == UNAUTHORIZED
        assert relay.stored() == 0
        assert await relay.counts("relay_rejected_total") == {
            ("mismatch", "main"): 1,
            ("mismatch", "other"): 1,
        }
        # The same id is another event where it comes from another source.
        assert (await relay.ask(by(SECRET))).status == 202
        assert (await relay.ask(by(OTHER_SECRET, target="/other"))).status == 202


@row(54)
async def test_the_old_secret_verifies_for_as_long_as_it_is_listed(tmp_path: Path) -> None:
    both = OTHER_SOURCE.replace('["', '["env:RELAY_SECRET", "')
    async with service.serving(service.read(tmp_path, tables=both)) as relay:
        assert (await relay.ask(by(SECRET, target="/other"))).status == 202
        assert (await relay.ask(by(OTHER_SECRET, target="/other"))).status == 200
    async with service.serving(service.read(tmp_path, tables=OTHER_SOURCE)) as relay:
        assert (await relay.ask(by(SECRET, target="/other"))).status == 401
        assert (await relay.ask(by(OTHER_SECRET, target="/other"))).status == 200


@row(56)
async def test_thousands_of_bad_signatures_cost_no_event_and_few_lines(relay: Relay) -> None:
    count = 3_000
    forged = by("a-secret-that-was-guessed")
    before = await relay.counts("relay_store_commit_seconds_count")
    async with await relay.call() as caller:
        for _ in range(count // 100):
            caller.write(forged * 100)
            assert {(await caller.answer()).status for _ in range(100)} == {401}
    assert (await relay.ask(post(EVENT))).status == 202
    after = await relay.counts("relay_store_commit_seconds_count")
    assert after[()] - before.get((), 0) < 10
    assert await relay.counts("relay_rejected_total") == {("mismatch", "main"): count}
    assert 1 <= len(relay.lines("request.refused")) <= 20


@row(57)
async def test_below_the_floor_of_free_space_nothing_is_acknowledged(tmp_path: Path) -> None:
    async with service.serving(service.read(tmp_path, min_free="1024GiB")) as relay:
        for body in (EVENT, b"unreadable"):
            assert_unavailable(await relay.ask(post(body)))
        assert (await relay.ask(by("a-secret-that-was-guessed"))).status == 401
        assert (relay.stored(), relay.stored("unreadable")) == (0, 0)
        rejected = await relay.counts("relay_rejected_total")
        assert rejected == {("unavailable", "main"): 2, ("mismatch", "main"): 1}
        assert (await relay.counts("relay_requests_total"))["503", "main"] == 2


@row(57)
@pytest.mark.parametrize(
    "error",
    [StoreFull("the disk is full"), StoreError("locked"), StoreBroken("gone"), KeyError("sec.ret")],
    ids=lambda error: type(error).__name__,
)
async def test_a_store_that_fails_is_never_a_success_nor_a_500(
    relay: Relay, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def fail(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(SqliteStore, "accept", fail)
        for _ in range(30):
            assert_unavailable(await relay.ask(post(EVENT)))
    assert await relay.counts("relay_rejected_total") == {("unavailable", "main"): 30}
    assert "sec.ret" not in relay.log
    assert 2 <= len(relay.log.splitlines()) <= 40
    assert (await relay.ask(post(EVENT))).status == 202


@row(57)
async def test_a_store_that_is_locked_is_503_and_what_it_writes_later_counts(
    tmp_path: Path, destination: StubServer
) -> None:
    settings = service.read(tmp_path, server='ack_timeout = "400ms"', destination=destination)
    async with service.serving(settings) as relay:
        with locked(service.store_file(settings)):
            assert_unavailable(await relay.ask(post(EVENT)))
            assert await relay.counts("relay_events_total") == {}
        await relay.until_counted("relay_events_total", "video.ready", "accepted", "main")
        await until(lambda: len(destination.requests) == 1, what="the delivery")
        assert (await relay.ask(post(EVENT))).content["status"] == "duplicate"


@row(58)
async def test_a_request_in_flight_is_answered_before_connections_are_refused(
    tmp_path: Path,
) -> None:
    request = post(EVENT)
    async with service.serving(service.read(tmp_path)) as relay:
        port = relay.service.public.port
        caller = await relay.call()
        caller.write(request[:-5])
        tasks = relay.service.public._exchanges.tasks
        await until(lambda: bool(tasks), what="the request")
        stopping = asyncio.create_task(relay.service._drain())
        await until(lambda: relay.service._public_side.receiver.draining, what="the draining")
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        answer = await caller.ask(request[-5:])
        assert (answer.status, answer.headers["connection"]) == (202, "close")
        assert await caller.is_closed()
        caller.leave()
        await stopping
        assert relay.stored() == 1


@row(58)
async def test_a_request_that_comes_while_draining_is_to_come_again(relay: Relay) -> None:
    relay.service._public_side.receiver.draining = True
    assert_unavailable(await relay.ask(post(EVENT)))
    assert await relay.counts("relay_rejected_total") == {("unavailable", "main"): 1}
    assert relay.stored() == 0


def test_every_row_of_the_table_is_covered() -> None:
    for name in ("hostile_requests", "hostile_http", "app"):
        importlib.import_module(f"tests.receiver.test_{name}")
    assert set(range(1, 59)) == COVERED


def assert_unavailable(answer: Answer) -> None:
    assert (answer.status, answer.body) == (503, b'{"status":"unavailable"}')
    assert int(answer.headers["retry-after"]) > 0


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold SQLite's write lock, as another program could."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        yield
        db.execute("ROLLBACK")
