"""The rules for one sink's answers, without a request: each status and body, and its meaning."""

import json
from typing import Any

import pytest
from multidict import CIMultiDict

from relay.core import expressions
from relay.core.errors import Misconfigured, Refused, SinkError, Temporary
from relay.outbound.http import responses
from relay.outbound.http.responses import HttpResponse
from relay.sinks.http import answers
from relay.sinks.http.answers import LISTS, AnswerRules
from tests.conftest import NOW_MS
from tests.sinks.conformance import built

HOUR_MS = 3_600_000
EVERY = range(200, 1000)


def rules(success: str | None = None, header: str | None = None, **lists: Any) -> AnswerRules:
    expression = None if success is None else expressions.Expression(success)
    return AnswerRules(success=expression, lists=lists, retry_after_header=header)


def listing(key: str, status: int, success: str | None = None) -> AnswerRules:
    lists: dict[str, Any] = {key: [status]}
    return rules(success, **lists)


def answer(
    status: int = 200, body: object = b"", headers: dict[str, str] | None = None, **more: Any
) -> HttpResponse:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = CIMultiDict(headers or {})
    return HttpResponse(status, named, content.decode(), complete=True, body=content, **more)


def error(rules: AnswerRules, response: HttpResponse) -> SinkError | None:
    try:
        rules.outcome(response, now_ms=NOW_MS)
    except SinkError as error:
        return error
    return None


def kind(rules: AnswerRules, response: HttpResponse) -> type[SinkError] | None:
    raised = error(rules, response)
    return None if raised is None else type(raised)


@pytest.mark.parametrize("status", EVERY)
def test_without_rules_the_table_of_all_sinks_decides(status: int) -> None:
    raised = error(rules(), answer(status))
    meaning = responses.meaning(status)
    found = None if raised is None else (type(raised), raised.reason)
    assert found == (meaning and (meaning[0], f"{status}: {meaning[1]}"))
    assert rules().ends_connection(status) == responses.ends_connection(status)


def test_the_answer_to_a_delivered_event_is_handed_on() -> None:
    taken = rules().outcome(answer(201, b"made"), now_ms=NOW_MS)
    assert (taken.status, taken.excerpt) == (201, "made")


@pytest.mark.parametrize("status", EVERY)
def test_a_listed_status_means_what_its_list_says(status: int) -> None:
    assert kind(rules(delivered_on=[status]), answer(status)) is None
    for key, expected in (
        ("retry_on", Temporary),
        ("park_on", Misconfigured),
        ("refuse_on", Refused),
    ):
        raised = error(listing(key, status), answer(status, b"why"))
        assert type(raised) is expected
        assert raised.reason == f"{status}: `{key}` names this status"
        assert (raised.status, raised.answer, raised.about_event) == (status, "why", True)


def test_a_connection_is_kept_by_what_the_lists_say() -> None:
    assert not rules(delivered_on=[302]).ends_connection(302)
    assert not rules(refuse_on=[300]).ends_connection(300)
    assert rules(park_on=[400]).ends_connection(400)
    assert rules(retry_on=[503]).ends_connection(503)


@pytest.mark.parametrize("status", [200, 201, 299])
def test_a_true_rule_delivers_whatever_the_lists_say(status: int) -> None:
    answered = answer(status, {"ok": True})
    assert kind(rules("ok"), answered) is None
    for key in LISTS:
        assert kind(listing(key, status, "ok"), answered) is None


@pytest.mark.parametrize("body", [{"ok": False}, {}, [], None, 1, {"ok": None}, {"ok": ""}])
def test_a_false_rule_is_the_events_own_failure(body: object) -> None:
    raised = error(rules("ok"), answer(200, body))
    assert type(raised) is Temporary
    assert raised.about_event
    assert raised.reason == "200: `success` is not true of the answer"


def test_a_rule_that_fails_is_not_true() -> None:
    raised = error(rules("length(results) == `1`"), answer(200, {"errors": ["marked"]}))
    assert type(raised) is Temporary
    assert raised.reason == "200: `success` fails on the answer (JMESPathTypeError)"


def test_a_list_decides_of_a_false_rule() -> None:
    for body in ({"ok": False}, b"marked", b""):
        assert kind(rules("ok", delivered_on=[202]), answer(202, body)) is None
        assert kind(rules("ok", retry_on=[202]), answer(202, body)) is Temporary
        assert kind(rules("ok", park_on=[202]), answer(202, body)) is Misconfigured
        assert kind(rules("ok", refuse_on=[202]), answer(202, body)) is Refused


@pytest.mark.parametrize(
    ("response", "what"),
    [
        (answer(200, b"<html>marked</html>"), "that is not JSON"),
        (answer(200, b'{"ok": tr'), "that is not JSON"),
        (answer(200, b""), "without a body"),
        (answer(200, {"ok": True}, is_whole=False), "of more than 64 KiB"),
    ],
)
def test_an_answer_that_a_rule_cannot_be_asked_about_parks_the_sink(
    response: HttpResponse, what: str
) -> None:
    raised = error(rules("ok"), response)
    assert type(raised) is Misconfigured
    assert raised.reason == (
        f"200: `success` cannot be asked about an answer {what}: if it confirms an event, put 200 "
        "into `delivered_on`"
    )


def test_a_rule_is_not_asked_about_other_answers_than_a_2xx() -> None:
    assert kind(rules("!(error)"), answer(500, {})) is Temporary
    assert kind(rules("!(error)"), answer(404, {})) is Misconfigured
    assert kind(rules("!(error)"), answer(302, b"")) is Misconfigured


def test_long_answers_are_judged_on_a_thread_and_only_with_a_rule() -> None:
    long = answer(200, {"ok": True, "more": "x" * 2_048})
    assert rules("ok").takes_long(long)
    assert not rules("ok").takes_long(answer(200, {"ok": True}))
    assert not rules().takes_long(long)


def test_a_check_knows_the_lists_but_no_rule_over_bodies() -> None:
    def check(rules: AnswerRules, status: int) -> None:
        rules.raise_for_check(answer(status), method="OPTIONS", now_ms=NOW_MS)

    check(rules("ok"), 200)
    check(rules(park_on=[200]), 200)
    check(rules(delivered_on=[302]), 302)
    with pytest.raises(Misconfigured, match=r"^302 to OPTIONS: a redirect"):
        check(rules(), 302)
    with pytest.raises(Temporary, match=r"^403 to OPTIONS: `retry_on` names this status"):
        check(rules(retry_on=[403]), 403)


@pytest.mark.parametrize(
    ("value", "wait_ms"),
    [
        ("30", 30_000),
        ("0.64", 640),
        ("0", 0),
        (str(NOW_MS // 1000 + 20), 20_000),
        (f"{NOW_MS // 1000 + 20}.5", 20_500),
        (str(NOW_MS + 20_000), 20_000),
        (str(NOW_MS // 1000 - 20), 0),
        ("", None),
        ("soon", None),
        ("-1", None),
        ("1e9", None),
        ("9" * 16, None),
        ("\u0661", None),
    ],
)
def test_a_header_of_ones_own_is_read_in_seconds_or_as_a_unix_time(
    value: str, wait_ms: int | None
) -> None:
    raised = error(rules(header="X-Reset"), answer(429, headers={"x-reset": value}))
    assert isinstance(raised, Temporary)
    assert raised.retry_after_ms == wait_ms


def test_the_longer_of_two_waits_counts() -> None:
    for own, standard, wait_ms in (("5", "9", 9_000), ("9", "5", 9_000)):
        headers = {"x-reset": own, "retry-after": standard}
        raised = error(rules(header="X-Reset"), answer(429, headers=headers))
        assert isinstance(raised, Temporary)
        assert raised.retry_after_ms == wait_ms


def test_a_header_of_ones_own_counts_only_where_the_answer_asks_for_a_pace() -> None:
    paced = rules("ok", "X-Reset", retry_on=[403, 200], park_on=[400])
    headers = {"X-RESET": "60"}
    waits = {
        status: getattr(error(paced, answer(status, {}, headers)), "retry_after_ms", "none")
        for status in (429, 403, 200, 503, 201, 400)
    }
    assert waits == {429: 60_000, 403: 60_000, 200: 60_000, 503: None, 201: None, 400: "none"}


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"success": "a ="}, "success: is not a JMESPath expression"),
    ({"success": "lenght(a)"}, "success: is not a JMESPath expression: unknown function"),
    ({"delivered_on": [302], "park_on": [400, 302]}, r"park_on\[1\]: 302 is in delivered_on as"),
    ({"retry_on": [99]}, r"retry_on\[0\]: expected a status from 200 to 999"),
    ({"refuse_on": [1000]}, r"refuse_on\[0\]: expected a status"),
    ({"retry_after_header": "X Reset"}, "retry_after_header: expected a header's name"),
    ({"retry_after_header": ""}, "retry_after_header: expected a header's name"),
]


@pytest.mark.parametrize(("table", "fault"), FAULTS)
def test_a_setting_that_cannot_be_right_is_refused_by_its_key(
    table: dict[str, Any], fault: str
) -> None:
    with pytest.raises(ValueError, match=fault):
        built("http", url="https://crm.example/", **table)


def test_a_rule_that_compares_two_names_is_warned_of() -> None:
    (warning,) = answers.warnings('status == "ok"')
    assert warning.startswith("success: compares two names of the answer: write a text as 'text'")
    assert list(answers.warnings("status == 'ok'")) == []
    assert list(answers.warnings(None)) == []


def test_a_rule_and_a_status_that_stands_twice_in_one_list_are_taken() -> None:
    built("http", url="https://crm.example/", success="ok", park_on=[400, 400])
