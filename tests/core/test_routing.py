"""A route takes an event, declines it, or fails on it, and says why."""

from collections.abc import Sequence
from typing import Any

import orjson
import pytest
from msgspec.structs import replace

from relay.core import sample_events
from relay.core.errors import InvalidRule
from relay.core.event import KINDS, LEAD_CAPTURED, WEBHOOK_TEST, Event
from relay.core.routing import Ordered, Route, match


def outcome(
    event: Event,
    *,
    events: Sequence[str] = ("*",),
    sources: Sequence[str] | None = None,
    when: str | None = None,
) -> str:
    return Route("crm", events=events, sources=sources, when=when).evaluate(event).outcome


def of_kind(kind: str) -> Event:
    return Event(
        source="main", id="evt_1", kind=kind, created_at=None, received_ms=0, body=b'{"event":"x"}'
    )


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != WEBHOOK_TEST])
def test_a_route_without_conditions_takes_every_kind(kind: str) -> None:
    assert outcome(sample_events.event(kind)) == "takes"


@pytest.mark.parametrize(
    ("globs", "kind", "expected"),
    [
        (["video.*"], "video.ready", "takes"),
        (["video.*"], "video.", "takes"),
        (["video.*"], "video", "declines"),
        (["video.*"], "lead.captured", "declines"),
        (["video.*"], "my.video.ready", "declines"),
        (["*.captured", "video.w*"], "video.watched", "takes"),
        (["video.read?"], "video.ready", "takes"),
        (["video.[rf]*"], "video.failed", "takes"),
        (["video.[!rf]*"], "video.failed", "declines"),
        (["video.ready"], "videoXready", "declines"),
        (["video.ready"], "Video.Ready", "declines"),
        (["video.ready"], "video.ready\n", "declines"),
        (["video.(a|b)+"], "video.a", "declines"),
        (["a|b"], "a", "declines"),
        (["["], "[", "takes"),
    ],
)
def test_events_are_globs_over_the_whole_kind(globs: list[str], kind: str, expected: str) -> None:
    assert outcome(of_kind(kind), events=globs) == expected


@pytest.mark.parametrize("globs", [["*"], ["webhook.*"], ["webhook.tes?"], ["*", "lead.captured"]])
def test_a_test_event_does_not_go_where_only_a_glob_matches_it(globs: list[str]) -> None:
    assert outcome(sample_events.event(WEBHOOK_TEST), events=globs) == "declines"


def test_a_test_event_goes_to_a_sink_that_names_it() -> None:
    assert (
        outcome(sample_events.event(WEBHOOK_TEST), events=["lead.captured", WEBHOOK_TEST])
        == "takes"
    )


@pytest.mark.parametrize(
    ("globs", "expected"),
    [(["*"], "takes"), (["video.*"], "takes"), (["video.ready", "lead.*"], "declines")],
)
def test_an_unknown_kind_goes_to_a_sink_whose_glob_matches_it(
    globs: list[str], expected: str
) -> None:
    assert outcome(of_kind("video.transcribed"), events=globs) == expected


@pytest.mark.parametrize(
    ("sources", "expected"),
    [(None, "takes"), (["main"], "takes"), (["a", "main"], "takes"), (["mai"], "declines")],
)
def test_sources_are_exact_names(lead: Event, sources: list[str] | None, expected: str) -> None:
    assert outcome(lead, sources=sources) == expected


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        ("event == 'lead.captured'", "takes"),
        ("event == 'video.ready'", "declines"),
        ("data.email", "takes"),
        ("data.nothing", "declines"),
        ("data.nothing.deeper[0]", "declines"),
        ("`0`", "takes"),
        ("`true`", "takes"),
        ("`[0]`", "takes"),
        ("`false`", "declines"),
        ("`null`", "declines"),
        ('`""`', "declines"),
        ("`[]`", "declines"),
        ("`{}`", "declines"),
        ("contains(data.email, '@')", "takes"),
        ("!(data.nothing) && data.video.id", "takes"),
    ],
)
def test_truth_of_a_rule_follows_jmespath(lead: Event, when: str, expected: str) -> None:
    assert outcome(lead, when=when) == expected


@pytest.mark.parametrize("value", ["0", "0.0", "-1", "[null]", '{"a":null}', '" "'])
def test_a_value_that_is_neither_empty_nor_false_is_true(value: str) -> None:
    body = f'{{"data":{value}}}'.encode()
    event = Event(source="main", id="1", kind="a", created_at=None, received_ms=0, body=body)
    assert outcome(event, when="data") == "takes"


@pytest.mark.parametrize(
    "when",
    [
        "length(`1`)",
        "contains(data.nothing, 'a')",
        "starts_with(data.fields, 'a')",
        'sort(`[1, "a"]`)',
        'max(`[1, "a"]`)',
        "sum(data.email)",
    ],
)
def test_a_rule_that_raises_on_an_event_fails(lead: Event, when: str) -> None:
    verdict = Route("crm", when=when).evaluate(lead)
    assert verdict.outcome == "fails"
    assert verdict.why.startswith("when failed: ")


def test_a_rule_that_nests_too_deeply_is_refused() -> None:
    with pytest.raises(InvalidRule, match="nested too deeply"):
        Route("crm", when="(" * 5_000 + "a" + ")" * 5_000)


def test_a_rule_that_is_too_long_to_evaluate_fails() -> None:
    assert outcome(of_kind("a"), when="nothing" + " || nothing" * 2_000) == "fails"


def test_no_verdict_contains_data_of_the_event(lead: Event) -> None:
    email = lead.document()["data"]["email"]
    rules = [f"length(`1`) || data.email == '{kind}'" for kind in KINDS]
    for route in [Route("crm", when=rule) for rule in [*rules, "sum(data.email)", "data.email"]]:
        assert email not in route.evaluate(lead).why


@pytest.mark.parametrize(
    "when", ["data.", "event = 'a'", 'event == "a', "nope(data)", "foo[", "", "length()"]
)
def test_an_invalid_rule_is_refused_or_fails_on_every_event(lead: Event, when: str) -> None:
    try:
        route = Route("crm", when=when)
    except InvalidRule:
        return
    assert route.evaluate(lead).outcome == "fails"


def test_a_rule_is_not_evaluated_if_the_kind_does_not_match(lead: Event) -> None:
    assert outcome(lead, events=["video.*"], when="sum(data.email)") == "declines"


def test_every_verdict_says_why(lead: Event) -> None:
    routes = {
        "source main is not in sources": Route("crm", sources=["other"]),
        "lead.captured matches nothing in events": Route("crm", events=["video.*"]),
        "events and sources match": Route("crm", events=["lead.*"], sources=["main"]),
        "when is true: data.email": Route("crm", when="data.email"),
        "when is false: data.nothing": Route("crm", when="data.nothing"),
    }
    assert [route.evaluate(lead).why for route in routes.values()] == list(routes)
    verdict = Route("crm").evaluate(sample_events.event(WEBHOOK_TEST))
    assert verdict.why == "webhook.test goes only to sinks that name it in events"


def test_matching_keeps_the_order_and_what_fails_but_not_what_declines(lead: Event) -> None:
    routes = [
        Route("first"),
        Route("second", events=["video.*"]),
        Route("third", when="sum(data.email)"),
        Route("fourth", events=[LEAD_CAPTURED]),
    ]
    verdicts = [(verdict.sink, verdict.outcome) for verdict in match(lead, routes)]
    assert verdicts == [("first", "takes"), ("third", "fails"), ("fourth", "takes")]
    assert match(lead, []) == ()


def key(ordered: Ordered | None, data: Any, *, kind: str = "video.watched") -> str | None:
    body = orjson.dumps({"id": "1", "event": kind, "data": data})
    event = Event(source="main", id="1", kind=kind, created_at=None, received_ms=0, body=body)
    return Route("crm", ordered=ordered).evaluate(event).key


def test_the_ordering_key_can_be_the_video() -> None:
    lead = {"id": "lead_1", "video": {"id": "vid_1"}}
    assert key("video", {"video": {"id": "vid_1"}}) == "video vid_1"
    assert key("video", {"id": "vid_1"}, kind="video.ready") == "video vid_1"
    assert key("video", lead, kind=LEAD_CAPTURED) == "video vid_1"


@pytest.mark.parametrize("written", ["ada@example.com", "ADA@Example.Com", " ada@example.com\n"])
def test_spellings_of_an_address_are_one_viewer(written: str) -> None:
    watched = key("viewer", {"viewer": {"email": written}, "email": "other@example.com"})
    lead = key("viewer", {"email": written}, kind=LEAD_CAPTURED)
    assert watched == lead == "viewer ada@example.com"


@pytest.mark.parametrize("letter", ["\u00e9", "\u00c9", "e\u0301"])
def test_composed_and_decomposed_letters_are_one_viewer(letter: str) -> None:
    assert key("viewer", {"email": f"Ren{letter}@example.com"}) == "viewer ren\u00e9@example.com"


@pytest.mark.parametrize("ordered", ["video", "viewer"])
@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        "vid_1",
        {},
        {"video": None, "viewer": None, "email": None},
        {"video": {"id": 7}, "viewer": {"email": 7}},
        {"video": [], "viewer": {}, "email": []},
        {"viewer": {"email": " "}},
    ],
)
def test_an_event_without_the_value_has_no_ordering_key(ordered: Ordered, data: Any) -> None:
    assert key(ordered, data) is None


def test_an_unordered_sink_has_no_ordering_keys(lead: Event) -> None:
    assert Route("crm").evaluate(lead).key is None
    assert Route("crm", when="data.email").evaluate(lead).key is None
    assert Route("crm", when="data.email", ordered="viewer").evaluate(lead).key is not None


def test_only_a_sink_that_wants_them_takes_reconstructed_events(lead: Event) -> None:
    made = replace(lead, reconstructed=True)
    assert Route("crm").evaluate(made).outcome == "declines"
    assert Route("crm", reconstructed=True).evaluate(made).outcome == "takes"
    assert Route("crm", reconstructed=True).evaluate(lead).outcome == "takes"
