"""The audience on the page of a running relay."""

import csv
import io
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from relay.admin.page.views.audience import files
from relay.admin.page.views.audience import section as audience
from relay.core import signature
from tests import service
from tests.admin.page.document import Element
from tests.admin.page.visiting import ADMIN, VIEWER_TOKEN, Visitor, visiting
from tests.admin.test_api import body, send
from tests.caller import SECRET, post
from tests.service import Relay, ShiftedClock

DAY_S = 86_400
REPORTED = "the video service reports views of known people only"
DASHES = dict.fromkeys((0x2013, 0x2212), "-")
HOSTILE = "<script>alert(1)</script>\"'><img src=x>\u202e"


@pytest.fixture
def clock() -> ShiftedClock:
    return ShiftedClock()


@pytest.fixture
async def relay(tmp_path: Path, clock: ShiftedClock) -> AsyncIterator[Relay]:
    async with service.serving(service.read(tmp_path, tables=ADMIN), clock=clock) as relay:
        yield relay


def view(event_id: str, person: str | None, milestone: str, **video: str) -> bytes:
    data = {"video": video or {"id": "vid_1", "title": "Tour"}, "milestone": milestone}
    viewer = {} if person is None else {"viewer": {"email": f"{person}@example.com"}}
    return body(event_id, "video.watched", **data, **viewer)


def lead(event_id: str, person: str | None, video: str = "vid_1") -> bytes:
    address = {} if person is None else {"email": f"{person}@example.com"}
    return body(event_id, video={"id": video, "title": "Tour"}, **address)


async def send_a_day(relay: Relay) -> None:
    """Three people start, two get to 25 %, one ends; two leads, one of them twice."""
    sent = [view(f"s{number}", person, "started") for number, person in enumerate("abc")]
    sent += [view("again", "A", "started"), view("nobody", None, "started")]
    sent += [view("q1", "a", "25%"), view("q2", "b", "25%"), view("end", "a", "completed")]
    sent += [lead("l1", "a"), lead("l2", "a"), lead("l3", "z"), lead("l4", None)]
    sent += [view("other", "a", "started", id="vid_2", title="Pricing")]
    await send(relay, *sent)
    assert (await relay.ask(post(sent[0]))).status == 200


def table(page: Element, label: str) -> list[list[str]]:
    found = next(each for each in page.all("div") if each.attributes.get("aria-label") == label)
    # Dashes and minus signs are read alike.
    return [[cell.translate(DASHES) for cell in row] for row in found.rows()]


def figures(page: Element) -> list[tuple[str, str, str]]:
    parts = page.by_id("figures").all("div")
    return [
        (each.all("dt")[0].text, each.all("dd")[0].text, each.all("dd")[1].text) for each in parts
    ]


async def test_people_count_once_and_drop_offs_are_shown(relay: Relay, visitor: Visitor) -> None:
    await send_a_day(relay)
    page = await visitor.see("/audience")
    assert figures(page) == [
        ("Viewers", "3", "people who started a video"),
        ("Completed", "1", "33 % of viewers"),
        ("Leads", "2", "people, by 4 forms"),
        ("Without an address", "1", f"views and 1 form, in no other figure; {REPORTED}"),
    ]
    assert [[row[0], *row[2:]] for row in table(page, "Steps in total")] == [
        ["Started", "3", "100 %", "-"],
        ["25 %", "2", "67 %", "1 (33 %)"],
        ["50 %", "0", "0 %", "2 (100 %)"],
        ["75 %", "0", "0 %", "-"],
        ["Completed", "1", "33 %", "-"],
        ["Leads", "2", "67 %", "-"],
    ]
    assert table(page, "Videos") == [
        ["Tour vid_1", "3", "2 -33 %", "0 -100 %", "0", "1", "2 67 %"],
        ["Pricing vid_2", "1", "0 -100 %", "0", "0", "0", "0 0 %"],
    ]
    assert not page.has_id("lag")
    assert "@" not in visitor.html


async def test_days_without_views_are_drawn_and_hours_are_the_zones(
    relay: Relay, clock: ShiftedClock
) -> None:
    await send(relay, view("old", "a", "started"))
    clock.shift_s = 3 * DAY_S
    async with visiting(relay) as visitor:
        for later in (view("new", "b", "started"), lead("lead", "b")):
            now_s = clock.now_ms() // 1000
            signed = signature.header(SECRET.encode(), now_s=now_s, body=later)
            sent = post(later, ("Service-Signature", signed), sign=False)
            assert (await relay.ask(sent)).status == 202
        page = await visitor.see("/audience?period=all")
        days = table(page, "Day in numbers")
        assert [row[1:] for row in days] == [
            ["1", "0", "0"],
            ["0", "0", "0"],
            ["0", "0", "0"],
            ["1", "0", "1"],
        ]
        assert [row[0] for row in days] == sorted(row[0] for row in days)
        hours = {zone: await hour_of_views(visitor, zone) for zone in ("UTC", "Asia/Kolkata")}
        assert len(hours["UTC"]) == len(hours["Asia/Kolkata"]) == 1
        assert hours["UTC"] != hours["Asia/Kolkata"]
        today, oldest = days[-1][0], days[0][0]
        for query, viewers in (
            ("period=today", "1"),
            ("period=7d", "2"),
            (f"since={today}", "1"),
            (f"until={oldest}", "1"),
            (f"since={oldest}&until={today}", "2"),
            (f"period=today&since={oldest}&until={oldest}", "1"),
        ):
            assert figures(await visitor.see(f"/audience?{query}"))[0][1] == viewers, query


async def hour_of_views(visitor: Visitor, zone: str) -> list[str]:
    page = await visitor.see(f"/audience?period=all&zone={zone}")
    return [hour for hour, viewers, *_ in table(page, "Hour in numbers") if viewers != "0"]


async def test_the_url_keeps_the_filter(relay: Relay, visitor: Visitor) -> None:
    await send_a_day(relay)
    page = await visitor.see("/audience?video=vid_2&source=main&zone=Europe/Berlin&period=7d")
    assert figures(page)[0][1] == "1"
    fields = page.form("/audience").fields()
    assert (fields["video"], fields["zone"], fields["period"]) == ("vid_2", "Europe/Berlin", "7d")
    (option,) = (each for each in page.all("option") if "selected" in each.attributes)
    assert option.text == "main"
    links = page.links()
    zone, source, chip = page.all("a", class_="chip")
    assert [zone.text[:23], source.text[:11]] == ["Time zone Europe/Berlin", "Source main"]
    assert chip.text.startswith("Video Pricing")
    assert chip["href"] == "/audience?source=main&zone=Europe%2FBerlin&period=7d"
    assert links["30 days"].startswith("/audience?video=vid_2&source=main")
    assert links["CSV of days"].startswith("/audience/days.csv?video=vid_2&source=main")


async def test_every_table_is_a_file(relay: Relay, visitor: Visitor) -> None:
    await send_a_day(relay)
    await send(relay, view("formula", "a", "started", id="=1+1", title="@SUM(A1)"))
    tables = {}
    for name in ("funnel", "videos", "days", "hours"):
        answer = await visitor.client.get(f"/audience/{name}.csv?period=all")
        assert answer.headers["content-disposition"] == f'attachment; filename="{name}.csv"'
        tables[name] = list(csv.reader(io.StringIO(answer.text)))
    assert tables["funnel"][1] == ["started", "3", "7", "1"]
    assert tables["funnel"][-1] == ["leads", "2", "4", "1"]
    heads = ["title", "video", "started", "25%", "50%", "75%"]
    assert tables["videos"][0][:6] == heads
    assert ["'@SUM(A1)", "'=1+1", "1"] in [row[:3] for row in tables["videos"]]
    assert [row[1] for row in tables["days"]] == ["started", "3"]
    assert len(tables["hours"]) == 25


async def test_a_file_says_in_its_last_row_what_it_leaves_out(
    relay: Relay, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    await send_a_day(relay)
    whole = (await visitor.client.get("/audience/videos.csv")).text.splitlines()
    monkeypatch.setattr(files, "GROUPS_MAX", 1)
    answer = await visitor.client.get("/audience/videos.csv")
    assert answer.text.splitlines() == [
        *whole[:2],
        '"1 more are left out: choose fewer days, or a source."',
    ]
    assert len(whole) == 3


async def test_few_videos_are_shown_and_the_rest_is_said(relay: Relay, visitor: Visitor) -> None:
    await send_a_day(relay)
    page = await visitor.see("/audience?limit=1")
    assert len(table(page, "Videos")) == 1
    assert "1 more video with fewer people is left out here" in page.text
    page = await visitor.see(page.links()["Show up to 250"])
    assert len(table(page, "Videos")) == 2


async def test_viewers_see_figures_without_addresses(relay: Relay) -> None:
    title = "For ann.lee@example.com"
    await send(relay, view("a", "a", "started", id="v-bob@example.com", title=title))
    async with visiting(relay, token=VIEWER_TOKEN) as viewer:
        page = await viewer.see("/audience")
        assert figures(page)[0][1] == "1"
        (row,) = table(page, "Videos")
        assert row[0] == "For (address hidden) (address hidden)"
        exported = await viewer.client.get("/audience/videos.csv")
        assert exported.status_code == 200
        assert "example.com" not in viewer.html + exported.text
    async with visiting(relay) as visitor:
        (row,) = table(await visitor.see("/audience"), "Videos")
        assert title in row[0]


async def test_a_video_with_a_hostile_id_leads_to_its_own_figures(
    relay: Relay, visitor: Visitor
) -> None:
    await send(relay, view("a", "a", "started", id=HOSTILE, title=HOSTILE))
    page = await visitor.see("/audience")
    (row,) = table(page, "Videos")
    assert row[0].startswith(HOSTILE.replace("\u202e", "[U+202E]"))
    page = await visitor.see(
        next(each["href"] for each in page.all("a") if "video=" in each["href"])
    )
    assert page.form("/audience").fields()["video"] == HOSTILE
    assert figures(page)[0][1] == "1"


async def test_a_count_that_takes_long_goes_on_for_the_next_visit(
    relay: Relay, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    await send_a_day(relay)
    monkeypatch.setattr(audience, "WAIT_S", 0)
    page = await visitor.see("/audience?period=7d")
    assert "The count goes on" in page.by_id("counting").text
    again = page.by_id("counting").all("a")[0]["href"]
    assert again == "/audience?period=7d"
    monkeypatch.undo()
    assert figures(await visitor.see(again))[0][1] == "3"


async def test_an_empty_view_tells_the_next_step(relay: Relay, visitor: Visitor) -> None:
    page = await visitor.see("/audience")
    assert "relay send video.watched" in page.by_id("empty").text
    await send_a_day(relay)
    page = await visitor.see("/audience?since=2001-01-01&until=2001-01-02")
    assert page.by_id("empty").links() == {"Show everything": "/audience?period=all&zone=UTC"}


async def test_views_without_an_address_are_unknown_while_none_is_reported(
    relay: Relay, visitor: Visitor
) -> None:
    await send(relay, view("known", "a", "started"))
    assert figures(await visitor.see("/audience"))[3][:2] == ("Without an address", "unknown")


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("period=year", 400),
        ("since=yesterday", 400),
        ("since=0001-01-01", 400),
        ("until=9999-12-31", 400),
        ("since=2026-02-02&until=2026-02-01", 400),
        ("zone=Europe", 404),
        ("zone=../UTC", 400),
        ("zone=Mars/Base", 404),
        ("source=nobody", 404),
        ("limit=0", 400),
        ("limit=1000000", 400),
        ("email=ann@example.com", 400),
    ],
)
async def test_a_bad_parameter_is_reported(visitor: Visitor, query: str, status: int) -> None:
    for path in ("/audience", "/audience/days.csv"):
        page = await visitor.see(f"{path}?{query}", status=status)
        assert page.by_id("main").all("p")[0].text
