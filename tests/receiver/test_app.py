"""What is answered, counted, logged and handed on when a request comes, and when only.

The numbers in a test's id are rows of hostile-requests.md, section 7.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from relay.core import sample_events
from relay.core.clock import SystemClock
from relay.core.delivery_rules import WAITS_S
from relay.core.event import KINDS, LEAD_CAPTURED, MILESTONES, VIDEO_WATCHED, Outcome
from relay.store.sqlite.store import SqliteStore
from tests import service
from tests.caller import post, signed
from tests.receiver.hostile import EVENT
from tests.receiver.rows import row
from tests.service import Relay
from tests.stub_server import Reply, StubServer, until


@pytest.fixture(autouse=True)
def _row() -> None:
    """Takes the numbers that `row` puts into a test's id."""


class SlowStore:
    """Lets the real store write, and tells of it only when released."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.release = asyncio.Event()
        self.entered = 0
        self._accept = SqliteStore.accept
        patch.setattr(SqliteStore, "accept", self._slow())

    def _slow(self) -> Callable[..., Any]:
        async def accept(store: SqliteStore, *rest: Any) -> Outcome:
            self.entered += 1
            return await asyncio.shield(self._later(store, *rest))

        return accept

    async def _later(self, store: SqliteStore, *rest: Any) -> Outcome:
        await self.release.wait()
        return await self._accept(store, *rest)


@pytest.mark.parametrize("kind", KINDS)
async def test_every_kind_is_accepted_once_and_then_known(relay: Relay, kind: str) -> None:
    body = sample_events.event(kind, event_id="evt \u201c1\u201d").body
    answers = [await relay.ask(post(body)) for _ in range(2)]
    assert [(answer.status, answer.content) for answer in answers] == [
        (202, {"status": "accepted", "id": "evt \u201c1\u201d"}),
        (200, {"status": "duplicate", "id": "evt \u201c1\u201d"}),
    ]
    assert {answer.headers["content-type"] for answer in answers} == {"application/json"}
    assert await relay.counts("relay_events_total") == {
        (kind, "accepted", "main"): 1,
        (kind, "duplicate", "main"): 1,
    }
    assert await relay.counts("relay_requests_total") == {("202", "main"): 1, ("200", "main"): 1}
    assert await relay.counts("relay_ack_seconds_count") == {("main",): 2}


async def test_a_lead_is_counted_once_and_only_when_it_is_new(relay: Relay) -> None:
    for event_id in ("evt_1", "evt_2"):
        body = sample_events.event(LEAD_CAPTURED, event_id=event_id).body
        for sent in (body, body, body.replace(b"}}", b"} }")):
            assert (await relay.ask(post(sent))).status in {200, 202}
    assert await relay.counts("relay_leads_captured_total") == {("main",): 2}
    outcomes = await relay.counts("relay_events_total")
    assert outcomes == {
        (LEAD_CAPTURED, "accepted", "main"): 2,
        (LEAD_CAPTURED, "duplicate", "main"): 2,
        (LEAD_CAPTURED, "conflict", "main"): 2,
    }


async def test_every_milestone_is_counted_once_for_each_new_event(relay: Relay) -> None:
    for number, milestone in enumerate(MILESTONES):
        body = watched(f"evt_{number}", f'"{milestone}"')
        for _ in range(2):
            await relay.ask(post(body))
    counted = await relay.counts("relay_video_watched_total")
    assert counted == {(milestone, "main"): 1 for milestone in MILESTONES}


@pytest.mark.parametrize("milestone", ["null", '"90%"', "25", '["25%"]', '{"a":1}'])
async def test_a_milestone_that_we_do_not_know_is_accepted_and_no_label(
    relay: Relay, milestone: str
) -> None:
    assert (await relay.ask(post(watched("evt_1", milestone)))).status == 202
    assert await relay.counts("relay_video_watched_total") == {}
    assert (VIDEO_WATCHED, "accepted", "main") in await relay.counts("relay_events_total")


async def test_nothing_is_counted_as_an_event_before_it_is_durable(
    tmp_path: Path, destination: StubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = service.read(tmp_path, server='ack_timeout = "400ms"', destination=destination)
    async with service.serving(settings) as relay:
        slow = SlowStore(monkeypatch)
        body = sample_events.event(LEAD_CAPTURED).body
        answer = await relay.ask(post(body))
        assert (answer.status, answer.headers["retry-after"]) == (503, "10")
        assert await relay.counts("relay_leads_captured_total") == {}
        assert await relay.counts("relay_ack_seconds_count") == {}
        assert (relay.stored(), destination.requests) == (0, [])
        slow.release.set()
        await relay.until_counted("relay_leads_captured_total", "main")
        await until(lambda: len(destination.requests) == 2, what="both deliveries")
        assert (await relay.ask(post(body))).content["status"] == "duplicate"
        assert await relay.counts("relay_leads_captured_total") == {("main",): 1}
        assert len(destination.requests) == 2


async def test_a_sink_that_hangs_delays_neither_answers_nor_other_sinks(
    tmp_path: Path, destination: StubServer
) -> None:
    destination.reply = lambda request: None if request.target == "/all" else Reply()
    settings = service.read(tmp_path, server='drain_timeout = "50ms"', destination=destination)
    async with service.serving(settings) as relay:
        for number in range(30):
            body = sample_events.event(LEAD_CAPTURED, event_id=f"evt_{number}").body
            assert (await relay.ask(post(body))).status == 202
        await relay.until_counted("relay_deliveries_total", "delivered", "leads", value=30)
        assert ("delivered", "all") not in await relay.counts("relay_deliveries_total")


async def test_a_rule_that_fails_on_an_event_makes_a_dead_letter_of_its_delivery(
    tmp_path: Path, destination: StubServer
) -> None:
    rule = service.SINK.format(
        name="odd", url=destination.url("/odd"), more='when = "sum(data.title)"'
    )
    settings = service.read(tmp_path, tables=rule, destination=destination)
    async with service.serving(settings) as relay:
        assert (await relay.ask(post(sample_events.event("video.created").body))).status == 202
        await relay.until_counted("relay_dead_letters", "odd")
        await relay.until_counted("relay_deliveries_total", "delivered", "all")
        assert [request.target for request in destination.requests] == ["/all"]


async def test_the_raw_bytes_are_what_is_delivered(relay: Relay, destination: StubServer) -> None:
    body = b' {"id" : "evt_1",\r\n\t"event":"video.ready", "data":{"n":1.0e+0,"t":"\\u00e9"} }\n'
    assert (await relay.ask(post(body))).status == 202
    await until(lambda: len(destination.requests) == 1, what="the delivery")
    assert destination.requests[0].body == body


@row(50)
@pytest.mark.parametrize(
    ("trusted", "client"),
    [
        ("[]", "127.0.0.1"),
        ('["198.51.100.1"]', "127.0.0.1"),
        ('["127.0.0.1"]', "203.0.113.9"),
        ('["127.0.0.0/8"]', "203.0.113.9"),
    ],
)
async def test_only_a_trusted_proxy_names_the_client_in_the_log(
    tmp_path: Path, trusted: str, client: str
) -> None:
    settings = service.read(tmp_path, server=f"trusted_proxies = {trusted}")
    async with service.serving(settings) as relay:
        await relay.ask(post(b"", ("X-Forwarded-For", "203.0.113.9"), sign=False))
        (line,) = relay.lines("request.refused")
    assert line["client"] == client


@row(50)
@pytest.mark.parametrize(
    ("sent", "logged"),
    [
        ("req-1:a.b_C", "req-1:a.b_C"),
        ("r" * 64, "r" * 64),
        ("r" * 65, None),
        ("r" * 10_000, None),
        ("", None),
        ("sec ret", None),
        ("<script>", None),
        ("a@b.example", None),
        ("r\u00e9q", None),
        ("a\tb", None),
    ],
)
async def test_a_request_id_is_logged_only_where_it_is_well_formed(
    relay: Relay, sent: str, logged: str | None
) -> None:
    await relay.ask(post(b"", ("X-Request-ID", sent), sign=False))
    assert relay.lines("request.refused")[0].get("request_id") == logged


@row(50)
@pytest.mark.parametrize(
    ("sent", "client"),
    [
        ("198.51.100.1, 203.0.113.9", "203.0.113.9"),
        ("2001:db8::1", "2001:db8::1"),
        ("someone@example.com", None),
        ("9" * 10_000, None),
        ("<b>\u00e9</b>", None),
        ("unknown", None),
    ],
)
async def test_a_forwarded_address_is_logged_only_if_it_is_valid(
    relay: Relay, sent: str, client: str | None
) -> None:
    await relay.ask(post(b"", ("X-Forwarded-For", sent), sign=False))
    assert relay.lines("request.refused")[0].get("client") == client


@row(50)
async def test_forged_headers_change_neither_answer_nor_log(tmp_path: Path) -> None:
    forged = [
        ("Host", "sec.ret:99999"),
        ("X-Forwarded-Host", "sec.ret"),
        ("X-Forwarded-For", "sec.ret"),
        ("Forwarded", "for=sec.ret"),
        ("X-Forwarded-Proto", "sec.ret"),
        ("User-Agent", "sec.ret"),
        ("X-Original-URL", "/sec.ret"),
        ("X-HTTP-Method-Override", "GET"),
    ]
    async with service.serving(service.read(tmp_path, server="trusted_proxies = []")) as relay:
        assert (await relay.ask(post(EVENT, *forged))).status == 202
        assert (await relay.ask(post(EVENT, *forged, sign=False))).status == 401
        assert "sec.ret" not in relay.log


def watched(event_id: str, milestone: str) -> bytes:
    text = f'{{"id":"{event_id}","event":"video.watched","data":{{"milestone":{milestone}}}}}'
    return text.encode()


class LaterClock(SystemClock):
    """The system's clock, whose monotonic time can be moved on."""

    later_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.later_s


async def test_the_senders_retries_with_a_wrong_signature_are_distinguished_from_strangers(
    tmp_path: Path,
) -> None:
    clock = LaterClock()
    async with service.serving(service.read(tmp_path), clock=clock) as relay:
        for wait_s in (0, *WAITS_S):
            clock.later_s += wait_s
            for body in (b'{"id":"evt_1"}', b'{"id":"stranger_%d"}' % wait_s):
                wrong = ("Service-Signature", signed(body, secret="another one entirely"))
                assert (await relay.ask(post(body, wrong, sign=False))).status == 401
        assert await relay.counts("relay_mismatch_retries_total") == {("main",): len(WAITS_S)}
