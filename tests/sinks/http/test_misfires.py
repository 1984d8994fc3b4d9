"""What real APIs answer in their own way, and what the relay makes of it with rules and without.

Each answer is one that recipes.md marks with (X).
"""

from random import Random
from typing import Any

import pytest

from relay.core.delivery import Delivery
from relay.core.errors import SinkError
from relay.core.event import Event
from relay.core.retry import Decision, RetryPolicy, decide
from relay.sinks.http.sink import HttpSink
from tests.conftest import NOW_MS
from tests.outbound.http.token_endpoint import said
from tests.sinks.conformance import built
from tests.stub_server import Reply, StubServer

GONE_HOOK = said({"id": "web.incoming_webhook.invalid.app_error", "status_code": 400}, 400)
SPENT = said([{"errorCode": "REQUEST_LIMIT_EXCEEDED", "message": "marked"}], 403)
SEVERAL = said(
    ["/services/data/v68.0/sobjects/Lead/1", "/services/data/v68.0/sobjects/Lead/2"], 300
)
RAN = Reply(302, b"", {"location": "https://script.googleusercontent.com/macros/echo?marked"})
PARTLY = said({"results": [], "numErrors": 1, "errors": [{"category": "VALIDATION_ERROR"}]}, 207)
UPSERTED = said({"status": "COMPLETE", "results": [{"id": "1"}]})
INACTIVE = said({"ErrorCode": 406, "Message": "marked is inactive"}, 422)
ACCEPTED = said({"ErrorCode": 0, "Message": "OK"})
NOT_ACCEPTED = said({"ErrorCode": 300, "Message": "Invalid"})
POSTED = said({"success": True})
REFUSED = said({"success": False, "error": "unauthorized"})
THROTTLED_BODY = Reply(200, b"Webhook message delivery failed with error: 429")

HUBSPOT = {"success": "!(errors) && length(results) == `1`"}
MAILS = {"success": "ErrorCode == `0`", "park_on": [401]}

CASES: list[tuple[str, Reply, dict[str, Any], str, str]] = [
    ("Mattermost, a deleted hook", GONE_HOOK, {"park_on": [400]}, "dead", "parked"),
    ("Salesforce, a spent limit", SPENT, {"retry_on": [403]}, "parked", "retry"),
    ("Salesforce, two matches", SEVERAL, {"refuse_on": [300]}, "parked", "dead"),
    ("Apps Script", RAN, {"delivered_on": [302]}, "parked", "delivered"),
    ("HubSpot, partly failed", PARTLY, HUBSPOT, "delivered", "retry"),
    ("HubSpot, done", UPSERTED, HUBSPOT, "delivered", "delivered"),
    ("HubSpot, exists", said({}, 409), {"delivered_on": [409]}, "dead", "delivered"),
    ("Postmark, an inactive recipient", INACTIVE, MAILS, "dead", "dead"),
    ("Postmark, a sender without a signature", INACTIVE, {"park_on": [422]}, "dead", "parked"),
    ("Postmark, accepted", ACCEPTED, MAILS, "delivered", "delivered"),
    ("Postmark, a 200 that is none", NOT_ACCEPTED, MAILS, "delivered", "retry"),
    ("Rocket.Chat, posted", POSTED, {"success": "success"}, "delivered", "delivered"),
    ("Rocket.Chat, refused", REFUSED, {"success": "success"}, "delivered", "retry"),
    ("Service Bus, a full queue", Reply(403), {"retry_on": [403]}, "parked", "retry"),
    ("Teams, 429 in a 200", THROTTLED_BODY, {"success": "ok"}, "delivered", "parked"),
]


async def result(
    sink: HttpSink,
    event: Event,
    *,
    policy: RetryPolicy | None = None,
    first_attempt_ms: int | None = None,
    now_ms: int = NOW_MS,
) -> Decision:
    """Send an event once, and decide as the dispatcher does."""
    delivery = Delivery(
        seq=1, sink="crm", event=event, attempts=0, first_attempt_ms=first_attempt_ms
    )
    error = None
    try:
        await sink.send(event)
    except SinkError as raised:
        error = raised
    finally:
        await sink.close()
    return decide(
        delivery,
        error,
        policy or RetryPolicy(),
        standing="untried",
        probing=False,
        started_ms=now_ms,
        now_ms=now_ms,
        random=Random(1),
    )


@pytest.mark.parametrize(
    ("answer", "rules", "results"),
    [(answer, rules, results) for _, answer, rules, *results in CASES],
    ids=[case[0] for case in CASES],
)
async def test_an_answer_means_what_the_rules_say(
    destination: StubServer,
    lead: Event,
    answer: Reply,
    rules: dict[str, Any],
    results: tuple[str, str],
) -> None:
    without, expected = results
    destination.reply = lambda _: answer
    assert (await result(built("http", url=destination.url()), lead)).result == without
    decision = await result(built("http", url=destination.url(), **rules), lead)
    assert decision.result == expected
    assert "marked" not in decision.reason


async def test_a_false_rule_counts_until_the_event_is_given_up(
    destination: StubServer, lead: Event
) -> None:
    destination.reply = lambda _: REFUSED

    def sink() -> HttpSink:
        made: HttpSink = built("http", url=destination.url(), success="success")
        return made

    decision = await result(sink(), lead)
    assert (decision.result, decision.counts) == ("retry", True)
    after_ms = NOW_MS + 3 * 86_400_000
    decision = await result(sink(), lead, first_attempt_ms=NOW_MS, now_ms=after_ms)
    assert decision.result == "dead"
    assert decision.reason == "gave up: 200: `success` is not true of the answer"


async def test_an_answer_beyond_what_is_read_parks_instead_of_repeating_the_event(
    destination: StubServer, lead: Event
) -> None:
    destination.reply = lambda _: Reply(200, b'{"ok": true, "more": "%b"}' % (b"x" * 300_000))
    decision = await result(built("http", url=destination.url(), success="ok"), lead)
    assert decision.result == "parked"
    assert "an answer of more than 64 KiB" in decision.reason


async def test_a_long_answer_that_is_read_whole_is_judged(
    destination: StubServer, lead: Event
) -> None:
    destination.reply = lambda _: Reply(200, b'{"ok": true, "more": "%b"}' % (b"x" * 60_000))
    decision = await result(built("http", url=destination.url(), success="ok"), lead)
    assert decision.result == "delivered"


async def test_a_redirect_that_confirms_keeps_its_connection_and_is_not_followed(
    destination: StubServer, lead: Event
) -> None:
    destination.reply = lambda _: Reply(302, b"", {"location": destination.url("/other")})
    sink = built("http", url=destination.url(), delivered_on=[302])
    for _ in range(3):
        await sink.send(lead)
    await sink.close()
    assert {request.target for request in destination.requests} == {"/"}
    assert destination.accepted == 1
