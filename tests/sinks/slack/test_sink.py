"""The Slack sink against a hook on loopback: answers, the plainest form, templates, secrets."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from relay.core import config_values, sample_events
from relay.core.config_values import Rate
from relay.core.errors import InvalidTemplate, Misconfigured, Refused, SinkError, Temporary
from relay.core.event import KINDS, Event
from relay.core.large_bodies import LARGE_BYTES
from relay.outbound.http.responses import HttpResponse
from relay.sinks.slack import sink as slack
from relay.sinks.slack.responses import raise_for_status
from relay.sinks.slack.template import OwnMessage
from tests.sinks.conformance import error_of

PATH = "/services/T0SECRET0/B0SECRET0/markedhooktoken"
LEAD = sample_events.event("lead.captured", event_id="evt_lead")
NOW_MS = 1_772_443_800_000

Reply = tuple[int, str, dict[str, str]]


class StillClock:
    def now_ms(self) -> int:
        return NOW_MS

    def monotonic(self) -> float:
        return 0.0


class Hook:
    """Answers its replies in turn, the last one for ever, and remembers what came."""

    def __init__(self) -> None:
        self.replies: list[Reply] = [(200, "ok", {})]
        self.requests: list[tuple[str, str, dict[str, Any]]] = []
        self.port = 0
        self.hangs = False

    def say(self, *replies: tuple[int, str], headers: dict[str, str] | None = None) -> None:
        self.replies = [(status, body, headers or {}) for status, body in replies]

    @property
    def payloads(self) -> list[dict[str, Any]]:
        return [payload for _, _, payload in self.requests]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            lines = head.split("\r\n")
            lengths = [line for line in lines if line.startswith("content-length:")]
            body = await reader.readexactly(int(lengths[0].split(":")[1]) if lengths else 0)
            method, target, _ = lines[0].split(" ")
            self.requests.append((method, target, json.loads(body or b"{}")))
            if self.hangs:
                await reader.read()
                return
            status, text, headers = self.replies[0]
            self.replies = self.replies[1:] or self.replies
            answer = "" if method == "head" else text
            extra = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            writer.write(
                f"HTTP/1.1 {status} Said\r\nconnection: close\r\n{extra}"
                f"content-length: {len(answer.encode())}\r\n\r\n{answer}".encode()
            )
            await writer.drain()
        finally:
            writer.close()
            await writer.wait_closed()


@pytest.fixture
async def hook() -> AsyncIterator[Hook]:
    hook = Hook()
    server = await asyncio.start_server(hook.serve, "127.0.0.1", 0)
    hook.port = server.sockets[0].getsockname()[1]
    yield hook
    server.close()
    await server.wait_closed()


def table(url: str = "http://127.0.0.1:9" + PATH, **keys: object) -> slack.Settings:
    document = {"name": "sales", "type": "slack", "url": url, **keys}
    return msgspec.convert(document, slack.Settings, dec_hook=config_values.decode)


def made(hook: Hook, path: str = PATH, **keys: object) -> slack.SlackSink:
    return slack.build(table(f"http://127.0.0.1:{hook.port}{path}", **keys), StillClock())


async def failure(hook: Hook, event: Event = LEAD) -> SinkError:
    sink = made(hook)
    try:
        return await error_of(sink, event)
    finally:
        await sink.close()


def test_one_message_a_second_is_the_default() -> None:
    assert table().rate == Rate.parse("1/s")
    assert table().concurrency == 1


async def test_a_message_is_posted_once_and_carries_the_event_id(hook: Hook) -> None:
    sink = made(hook)
    answer = await sink.send(LEAD)
    await sink.close()
    await sink.close()
    assert (answer.status, answer.excerpt) == (200, "ok")
    assert hook.requests == [("post", PATH.lower(), sink.render(LEAD))]
    assert "Event evt_lead" in json.dumps(hook.payloads[0]["blocks"][-1])
    assert hook.payloads[0]["unfurl_links"] is False
    assert hook.payloads[0]["unfurl_media"] is False


async def test_only_a_large_message_is_made_beside_the_event_loop(
    hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[bool] = []
    render = OwnMessage.render

    def noted(self: OwnMessage, event: Event) -> dict[str, Any]:
        threads.append(threading.current_thread() is not threading.main_thread())
        return render(self, event)

    monkeypatch.setattr(OwnMessage, "render", noted)
    sink = made(hook, text="{{ id }}")
    threads.clear()
    await sink.send(LEAD)
    await sink.send(replace(LEAD, body=LEAD.body + b" " * LARGE_BYTES))
    await sink.close()
    assert threads == [False, True]


async def test_a_burst_becomes_one_message_that_delivers_every_event(hook: Hook) -> None:
    sink = made(hook, digest={"over": 2, "every": "1s"}, rate="100/s")
    burst = [sample_events.event("video.watched", event_id=f"evt_{number}") for number in range(20)]
    answers = await asyncio.gather(*(sink.send(event) for event in burst))
    await sink.close()
    assert len(hook.requests) == 1
    assert hook.payloads[0]["text"] == "20 events: 20 steps watched"
    assert {(answer.status, answer.excerpt) for answer in answers} == {(200, "ok")}


async def test_a_digest_that_slack_refuses_becomes_messages_of_their_own(hook: Hook) -> None:
    sink = made(hook, digest={"over": 2, "every": "1s"}, rate="100/s")
    hook.replies = [(400, "invalid_blocks", {}), (200, "ok", {})]
    burst = [sample_events.event("video.watched", event_id=f"evt_{number}") for number in range(4)]
    await asyncio.gather(*(sink.send(event) for event in burst))
    await sink.close()
    assert len(hook.requests) == 5


async def test_a_hook_that_hangs_fails_the_events_of_a_digest_in_the_sinks_time(
    hook: Hook,
) -> None:
    sink = made(hook, digest={"over": 2, "every": "1s"}, timeout="100ms")
    hook.hangs = True
    outcomes = await asyncio.gather(*(sink.send(LEAD) for _ in range(4)), return_exceptions=True)
    await sink.close()
    assert {str(outcome) for outcome in outcomes} == {"no answer within 0.1 s"}


def test_a_sink_with_a_digest_waits_for_others_and_keeps_its_own_rate() -> None:
    gathering = table(digest={"over": 5, "every": "1m"})
    assert (gathering.slots(), gathering.pace()) == (256, None)
    assert gathering.send_timeout().seconds == 10 + 60 + 1
    plain = table()
    assert (plain.slots(), plain.pace(), plain.send_timeout().seconds) == (1, plain.rate, 11)


CONTENT = [
    (400, "invalid_payload"),
    (400, "too_many_attachments"),
    (400, "no_text"),
    (400, "invalid_blocks"),
    (400, "invalid_blocks_format"),
    (400, "missing_text_or_fallback_or_attachments"),
    (400, "msg_blocks_too_long"),
    (400, "invalid_blocks: too many fields"),
    (400, '{"ok":false,"error":"invalid_blocks"}'),
    (400, "never heard of it"),
    (413, ""),
    (422, ""),
]
UNKNOWN = [
    (200, "no_channel"),
    (200, ""),
    (200, "okay"),
    (200, "<html>Welcome</html>"),
    (200, '{"ok":false,"error":"no_channel"}'),
    (202, ""),
    (204, ""),
]
"""Successes that are no answer of Slack's, as of a captive page."""

CONFIG = [
    *UNKNOWN,
    (400, "user_not_found"),
    (403, "action_prohibited"),
    (404, "channel_not_found"),
    (410, "channel_is_archived"),
    (403, "posting_to_general_channel_denied"),
    (403, "no_service"),
    (404, "no_service"),
    (404, "no_service_id"),
    (403, "no_active_hooks"),
    (404, "no_team"),
    (403, "team_disabled"),
    (403, "invalid_token"),
    (200, "channel_not_found"),
    (200, '{"ok":false,"error":"channel_is_archived"}'),
    (401, "?"),
    (403, "?"),
    (404, "?"),
    (410, "?"),
    (302, ""),
]
RETRY = [
    (429, "rate_limited"),
    (500, "rollup_error"),
    (500, "channel_not_found"),
    (408, ""),
    (502, "invalid_payload"),
    (503, ""),
]


@pytest.mark.parametrize(("status", "body"), CONTENT)
async def test_a_message_refused_for_its_content_is_sent_once_more_in_plain_form(
    hook: Hook, status: int, body: str
) -> None:
    hook.say((status, body), (200, "ok"))
    sink = made(hook)
    answer = await sink.send(LEAD)
    await sink.close()
    first, second = hook.payloads
    assert "blocks" in first
    assert set(second) == {"text", "unfurl_links", "unfurl_media"}
    video = LEAD.document()["data"]["video"]["id"]
    for part in ("lead.captured", video, "evt_lead", "could not be shown"):
        assert part in second["text"]
    assert LEAD.document()["data"]["email"] not in second["text"]
    assert "in plainest form" in answer.excerpt


@pytest.mark.parametrize(("status", "body"), CONTENT)
async def test_a_message_refused_twice_is_refused(hook: Hook, status: int, body: str) -> None:
    hook.say((status, body))
    error = await failure(hook)
    assert isinstance(error, Refused)
    assert len(hook.requests) == 2
    assert error.status == status
    assert "plainest" in error.reason


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [*((*each, Misconfigured) for each in CONFIG), *((*each, Temporary) for each in RETRY)],
)
async def test_an_error_is_transient_or_needs_an_operator_after_one_post(
    hook: Hook, status: int, body: str, kind: type[SinkError]
) -> None:
    hook.say((status, body))
    error = await failure(hook)
    assert isinstance(error, kind)
    assert len(hook.requests) == 1
    assert error.status == status


@pytest.mark.parametrize(
    ("status", "service", "reason"),
    [
        (200, None, "something else answers at this URL"),
        (202, None, "something else answers at this URL, as Power Automate does to any post"),
        (202, "Microsoft Teams", "the URL is an address of Microsoft Teams"),
    ],
)
def test_the_reason_names_what_answers_in_slacks_place(
    status: int, service: str | None, reason: str
) -> None:
    response = HttpResponse(status, {}, "", complete=True)
    with pytest.raises(Misconfigured) as raised:
        raise_for_status(response, service=service, now_ms=NOW_MS)
    assert raised.value.reason == f"{status}: neither ok nor any answer of Slack's: {reason}"


async def test_the_operator_reads_what_slack_said_what_it_means_and_what_to_do(hook: Hook) -> None:
    hook.say((410, "channel_is_archived"))
    assert (await failure(hook)).reason == (
        "Slack says 410 channel_is_archived: the hook's channel is archived: bring it back, "
        "or create a new webhook in Slack and put its URL into the config"
    )


async def test_a_429_for_the_plain_form_is_temporary(hook: Hook) -> None:
    hook.say((400, "invalid_blocks"), (429, "rate_limited"), headers={"retry-after": "7"})
    error = await failure(hook)
    assert isinstance(error, Temporary)
    assert error.retry_after_ms == 7000


async def test_json_that_says_ok_is_success(hook: Hook) -> None:
    hook.say((200, '{"ok":true}'))
    sink = made(hook)
    await sink.send(LEAD)
    await sink.close()
    assert len(hook.requests) == 1


@pytest.mark.parametrize("path", ["/workflows/T1/A1/1/secret", "/triggers/T1/1/secret"])
async def test_any_200_of_a_workflow_is_success(hook: Hook, path: str) -> None:
    hook.say((200, ""))
    sink = made(hook, path)
    await sink.send(LEAD)
    await sink.close()
    assert len(hook.requests) == 1


@pytest.mark.parametrize(
    "reply", [(400, "no_text"), (400, "invalid_payload"), (200, "ok"), (400, "?")]
)
async def test_a_check_of_a_live_hook_passes_and_posts_no_message(
    hook: Hook, reply: tuple[int, str]
) -> None:
    hook.say(reply)
    sink = made(hook)
    await sink.check()
    await sink.close()
    assert hook.payloads == [{}]


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        ((404, "no_service"), Misconfigured),
        ((403, "invalid_token"), Misconfigured),
        ((302, ""), Misconfigured),
        ((200, "<html>"), Misconfigured),
        ((204, ""), Misconfigured),
        ((503, ""), Temporary),
    ],
)
async def test_a_check_of_a_dead_hook_says_so(
    hook: Hook, reply: tuple[int, str], kind: type[SinkError]
) -> None:
    hook.say(reply)
    sink = made(hook)
    with pytest.raises(kind):
        await sink.check()
    await sink.close()


async def test_a_check_of_a_workflow_does_not_start_it(hook: Hook) -> None:
    hook.say((404, ""))
    sink = made(hook, "/triggers/T1/1/secret")
    await sink.check()
    hook.say((503, ""))
    with pytest.raises(Temporary):
        await sink.check()
    await sink.close()
    assert [request[:2] for request in hook.requests] == [("head", "/")] * 2


SECRETS = ("T0SECRET0", "B0SECRET0", "markedhooktoken")


def holds_secret(error: BaseException | None) -> bool:
    if error is None:
        return False
    text = repr(error) + str(error) + repr(vars(error))
    found = any(secret in text for secret in SECRETS)
    return found or holds_secret(error.__cause__) or holds_secret(error.__context__)


@pytest.mark.parametrize("status", [200, 302, 400, 403, 404, 410, 429, 500])
async def test_no_error_holds_the_hook_even_where_the_answer_repeats_it(
    hook: Hook, status: int
) -> None:
    hook.say((status, f"http://127.0.0.1:{hook.port}{PATH} {PATH}"))
    assert not holds_secret(await failure(hook))


async def test_an_own_text_is_sent_with_the_event_id_below_it(hook: Hook) -> None:
    sink = made(hook, text="<!here> *{{ data.name }}* wrote", events=["lead.captured"])
    await sink.send(LEAD)
    await sink.close()
    section, origin = hook.payloads[0]["blocks"]
    assert hook.payloads[0]["text"] == section["text"]["text"]
    assert section["text"]["text"].startswith("<!here> *")
    assert "Event evt_lead" in json.dumps(origin)


async def test_an_own_template_that_fails_on_an_event_refuses_it_unsent(hook: Hook) -> None:
    sink = made(hook, text="{{ data.name }}", events=["lead.captured"])
    with pytest.raises(Refused) as caught:
        await sink.send(with_data(b"{}"))
    await sink.close()
    assert "text: line 1: name is missing" in caught.value.reason
    with pytest.raises(InvalidTemplate):
        sink.render(with_data(b"{}"))
    assert hook.requests == []


def with_data(data: bytes) -> Event:
    return Event(
        source="main",
        id="evt_odd",
        kind="lead.captured",
        created_at=None,
        received_ms=NOW_MS,
        body=b'{"id":"evt_odd","event":"lead.captured","data":' + data + b"}",
    )


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"text": "{{ data.name"}, "text: line 1: unexpected end of template"),
        ({"text": "{{ name }}"}, "text: line 1: no such name: name"),
        ({"text": "\n{{ data.email }}"}, "text: line 2: email is missing in this event.*created"),
        ({"text": " "}, r"text: nothing is written \(tried with a sample of video.created\)"),
        (
            {"text": "{% for i in range(4000) %}{{ 'x' * 20 }}{% endfor %}"},
            "text: the output is longer than 65536",
        ),
        ({"text": "{{ data.__class__ }}"}, "text: line 1: __class__ is missing in this event"),
        ({"blocks": []}, "blocks: expected 1 to 49"),
        ({"blocks": [{"type": "divider"}] * 50}, "blocks: expected 1 to 49"),
        ({"blocks": [{"text": "x"}]}, r"blocks\[0\].type: expected"),
        (
            {"blocks": [{"type": "section", "text": {"type": "mrkdwn", "text": "{{ x }}"}}]},
            r"blocks\[0\].text.text: line 1: no such name: x",
        ),
        (
            {"blocks": [{"type": "section", "text": {"type": "mrkdwn", "text": "{{ data.x }}"}}]},
            r"blocks\[0\].text.text: line 1: x is missing in this event",
        ),
        (
            {"blocks": [{"type": "section", "fields": [{}] * 11}]},
            r"blocks\[0\].fields: expected at most 10",
        ),
        (
            {"blocks": [{"type": "section", "text": {"type": "mrkdwn", "text": "x" * 3000}}] * 5},
            "blocks: longer than",
        ),
    ],
)
def test_a_bad_template_is_refused_at_load_with_its_key(
    keys: dict[str, Any], expected: str
) -> None:
    with pytest.raises(InvalidTemplate, match=expected):
        slack.build(table(**keys), StillClock())


async def test_a_template_is_checked_only_with_events_that_the_sink_is_sent() -> None:
    for keys in (
        {"when": "no rule at all ("},  # for the config to report
        {"events": ["lead.*"]},
        {"when": "event == 'lead.captured'"},
        {"events": ["unheard.of"]},
    ):
        sink = slack.build(table(text="{{ data.email }}", **keys), StillClock())
        await sink.close()
    with pytest.raises(InvalidTemplate, match=r"webhook\.test"):
        slack.build(
            table(text="{{ data.email }}", events=["lead.captured", "webhook.test"]), StillClock()
        )


@pytest.mark.parametrize("kind", KINDS)
async def test_a_sink_renders_what_it_sends(hook: Hook, kind: str) -> None:
    sink = made(hook)
    event = sample_events.event(kind)
    await sink.send(event)
    await sink.close()
    assert hook.payloads == [sink.render(event)]
