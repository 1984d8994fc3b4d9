"""The line of a lead's message that says what the person has watched."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from relay.core.clock import SystemClock
from relay.core.config_values import Duration, Secret
from relay.core.errors import Refused
from relay.core.event import Event
from relay.core.watch_history import WatchedVideo, WatchHistory
from relay.sinks.slack import sink as slack
from relay.sinks.slack.blocks import BLOCKS_MAX, TOTAL_MAX, size
from relay.sinks.slack.digest import LEADS_MAX, digest
from relay.sinks.slack.message import message
from relay.sinks.slack.template import OwnMessage
from tests.sinks.slack.limits import check, texts
from tests.sinks.slack.test_message import HOSTILE, event, everywhere, said
from tests.stub_server import Reply, StubServer

TOUR = WatchedVideo(id="vid_1", title="Product tour", milestone="75%", last_ms=1_772_443_800_000)
LINE = "👀 Watched so far: “Product tour” (75%)"


def lead(*videos: WatchedVideo, data: object = None) -> Event:
    ours = data if data is not None else {"name": "Ada", "email": "ada@example.com"}
    return replace(event("lead.captured", ours), watch_history=WatchHistory.of(videos))


def lines(payload: dict[str, Any]) -> list[str]:
    return [text["text"] for text in texts(payload) if "Watched so far" in text["text"]]


def test_it_names_the_video_how_far_and_the_last_visit() -> None:
    payload = message(lead(TOUR))
    check(payload)
    (context,) = [block for block in payload["blocks"] if LINE in str(block)]
    assert [element["text"] for element in context["elements"]] == [
        LINE,
        "Last visit <!date^1772443800^{date_short_pretty}, {time}|2026-03-02 09:30 UTC>",
    ]


def test_it_names_the_last_three_and_counts_the_rest() -> None:
    videos = [WatchedVideo(id=f"v{number}", last_ms=number) for number in range(5)]
    assert lines(message(lead(*videos))) == ["👀 Watched so far: “v4”, “v3”, “v2”, 2 more videos"]
    assert lines(message(lead(*videos[:4])))[0].endswith("“v1”, 1 more video")


def test_without_a_time_there_is_no_last_visit() -> None:
    assert "Last visit" not in said(message(lead(WatchedVideo(id="v"))))


def test_nothing_watched_is_not_said() -> None:
    plain = event("lead.captured", {"name": "Ada", "email": "ada@example.com"})
    assert message(lead()) == message(plain)


@pytest.mark.parametrize("text", HOSTILE)
def test_a_title_can_break_or_bend_nothing(text: str) -> None:
    video = WatchedVideo(id=text, title=text, milestone="75%")
    payload = message(lead(*[video] * 3, data=everywhere(text)))
    check(payload)
    assert len(lines(payload)) == 1


@given(st.text(), st.text(), st.integers())
def test_any_history_makes_a_message_that_slack_takes(title: str, id_: str, ms: int) -> None:
    videos = [WatchedVideo(id=id_, title=title, milestone="completed", last_ms=ms)] * 5
    payload = message(lead(*videos, data=everywhere(title)))
    check(payload)


def test_the_longest_lead_still_fits() -> None:
    fields = {f"field {number}": "<&>" * 170 for number in range(30)}
    video = WatchedVideo(id="v", title="&" * 500, milestone="completed", last_ms=0)
    check(message(lead(*[video] * 9, data=everywhere("&" * 3000) | {"fields": fields})))


def test_an_own_message_has_the_line_before_its_origin() -> None:
    payload = OwnMessage(text="{{ data.name }}").render(lead(TOUR))
    check(payload)
    assert [block["type"] for block in payload["blocks"]] == ["section", "context", "context"]
    assert lines(payload) == [LINE]


def test_an_own_message_that_is_full_goes_without_the_line() -> None:
    def blocks(length: int) -> list[dict[str, Any]]:
        return [
            {"type": "section", "text": {"type": "mrkdwn", "text": "x" * chars}}
            for chars in (2900, 2900, 2900, length)
        ]

    short = OwnMessage(blocks=blocks(1)).render(lead())
    full = blocks(1 + TOTAL_MAX - size(short["blocks"]))
    assert lines(OwnMessage(blocks=full).render(lead(TOUR))) == []


def test_an_own_message_of_as_many_blocks_as_slack_takes_goes_without_the_line() -> None:
    payload = OwnMessage(blocks=[{"type": "divider"}] * (BLOCKS_MAX - 1)).render(lead(TOUR))
    assert len(payload["blocks"]) == BLOCKS_MAX
    assert lines(payload) == []


def test_a_digest_counts_the_videos_of_each_lead() -> None:
    payload = digest([lead(TOUR), lead(TOUR, WatchedVideo(id="v")), lead()])
    check(payload)
    shown = [text["text"] for text in texts(payload)]
    assert "👋 Ada, ada@example.com, 1 video watched" in shown
    assert "👋 Ada, ada@example.com, 2 videos watched" in shown
    assert "👋 Ada, ada@example.com" in shown


def test_a_digest_full_of_leads_still_fits() -> None:
    check(digest([lead(TOUR, data=everywhere("&" * 500))] * LEADS_MAX))


async def test_a_refused_line_is_left_to_the_dispatcher_which_sends_without(
    destination: StubServer,
) -> None:
    destination.reply = lambda request: (
        Reply(400, b"invalid_blocks") if b"Watched so far" in request.body else Reply(body=b"ok")
    )
    settings = slack.Settings(
        name="sales", type="slack", url=Secret(destination.url()), timeout=Duration.parse("5s")
    )
    sink = slack.build(settings, SystemClock())
    try:
        with pytest.raises(Refused):
            await sink.send(lead(TOUR))
        assert len(destination.requests) == 1
        await sink.send(replace(lead(TOUR), watch_history=None))
    finally:
        await sink.close()
