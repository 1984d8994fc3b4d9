"""Analytics through the API, against views whose every second is known."""

import csv
import io
import json
from typing import Any

import pytest

from relay.sandbox.viewing import Visit
from tests.sandbox.service import Served, serving
from tests.stub_server import StubServer

pytestmark = pytest.mark.servers

TODAY = "2026-03-02"
DAY_S = 86_400
ADA = {"email": "Ada@example.com", "name": "Ada"}


async def add(served: Served, *, title: str = "Tour", seconds: float = 100) -> str:
    answer = await served.control("videos", {"title": title, "durationSeconds": seconds})
    video: str = answer.json()["video"]["id"]
    return video


async def watch(served: Served, video: str, *part: float, **viewer: str) -> str:
    """Let a viewer watch a part of a video to its end."""
    start, end = part
    body = {"video": video, "from": start, "to": end, **viewer}
    answer = await served.control("viewers/watch", body)
    await served.step(end - start)
    session: str = answer.json()["session"]
    return session


async def read(served: Served, path: str, **params: str) -> Any:
    answer = await served.ask("GET", path, params=params, access="Read only")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def status(served: Served, path: str, **params: str) -> int:
    return (await served.ask("GET", path, params=params)).status_code


async def test_a_session_says_all_about_a_view(served: Served) -> None:
    video = await add(served)
    session = await watch(served, video, 0, 40, **ADA)
    page = await read(served, "/v1/analytics/sessions")
    assert page == {
        "sessions": [
            {
                "id": session,
                "video": {"id": video, "title": "Tour"},
                "viewer": {"email": "ada@example.com", "name": "Ada"},
                "startedAt": "2026-03-02T09:30:00.000Z",
                "endedAt": "2026-03-02T09:30:40.000Z",
                "watchedSeconds": 40.0,
                "watchedPercent": 40.0,
                "finished": False,
                "country": "DE",
                "device": "desktop",
                "page": "https://www.example.com/",
                "utm": {},
                "clicked": [],
                "submitted": [],
            }
        ],
        "next": None,
    }


async def test_a_session_changes_while_the_view_lasts(served: Served) -> None:
    video = await add(served)
    body = {"video": video, "from": 0, "to": 100, **ADA}
    await served.control("viewers/watch", body)
    await served.step(33.3)
    (session,) = (await read(served, "/v1/analytics/sessions"))["sessions"]
    live = await read(served, "/v1/analytics/live")
    await served.step(100)
    (ended,) = (await read(served, "/v1/analytics/sessions"))["sessions"]
    nobody = await read(served, "/v1/analytics/live")
    assert (session["watchedPercent"], session["endedAt"]) == (33.3, None)
    assert live == {"viewers": 1, "videos": [{"id": video, "title": "Tour", "viewers": 1}]}
    assert (ended["watchedPercent"], ended["finished"]) == (100.0, True)
    assert nobody == {"viewers": 0, "videos": []}


async def test_a_form_is_in_its_session_and_in_the_truth(served: Served) -> None:
    video = await add(served)
    form = {"email": "eve@example.org", "name": "Eve", "fields": {"company": "Contoso"}}
    lead = (await served.control("viewers/lead", {"video": video, **form})).json()["lead"]
    (session,) = (await read(served, "/v1/analytics/sessions"))["sessions"]
    truth = (await served.client.get("/sandbox/truth")).json()
    submitted = {"id": lead, **form, "createdAt": "2026-03-02T09:30:00.000Z"}
    assert session["submitted"] == [submitted]
    assert session["viewer"] == {"email": "eve@example.org", "name": "Eve"}
    assert truth["leads"] == [
        {"session": session["id"], "video": session["video"], "lead": submitted}
    ]
    assert [row["milestone"] for row in truth["milestones"]] == ["started"]


async def test_a_form_in_a_running_view_names_its_viewer(served: Served) -> None:
    video = await add(served)
    body = {"video": video, "from": 0, "to": 100}
    session = (await served.control("viewers/watch", body)).json()["session"]
    await served.step(60)
    anonymous = (await served.client.get("/sandbox/truth")).json()
    await served.control("viewers/lead", {"session": session, "name": "Ada", **ADA})
    truth = (await served.client.get("/sandbox/truth")).json()
    assert [row["milestone"] for row in anonymous["anonymous"]] == ["started", "25%", "50%"]
    assert anonymous["milestones"] == truth["anonymous"] == []
    assert [row["milestone"] for row in truth["milestones"]] == ["started", "25%", "50%"]


async def test_a_viewer_is_everything_that_an_address_watched(served: Served) -> None:
    tour, demo = await add(served), await add(served, title="Demo", seconds=50)
    await watch(served, tour, 0, 60, **ADA)
    await watch(served, tour, 50, 95, **ADA)
    await watch(served, demo, 10, 20, **ADA)
    await watch(served, demo, 0, 50, email="eve@example.org")
    viewer = await read(served, "/v1/analytics/viewer", email=" ADA@example.com")
    assert viewer["viewer"] == {"email": "ada@example.com", "name": "Ada"}
    assert viewer["videos"][0] == {
        "video": {"id": tour, "title": "Tour"},
        "sessions": 2,
        "watchedSeconds": 105.0,
        "watchedPercent": 95.0,
        "finished": True,
        "firstWatchedAt": "2026-03-02T09:30:00.000Z",
        "lastWatchedAt": "2026-03-02T09:31:45.000Z",
    }
    assert [(each["watchedPercent"], each["finished"]) for each in viewer["videos"]] == [
        (95.0, True),
        (20.0, False),
    ]


async def test_an_unknown_viewer_watched_nothing(served: Served) -> None:
    viewer = await read(served, "/v1/analytics/viewer", email="nobody@example.com")
    missing = await status(served, "/v1/analytics/viewer")
    assert viewer == {"viewer": {"email": "nobody@example.com", "name": None}, "videos": []}
    assert missing == 422


async def test_sessions_come_in_pages_the_oldest_first(served: Served) -> None:
    video = await add(served)
    begun = [await watch(served, video, 0, 1) for _ in range(5)]
    listed: list[list[str]] = []
    after: dict[str, str] = {}
    while True:
        page = await read(served, "/v1/analytics/sessions", limit="2", **after)
        listed.append([each["id"] for each in page["sessions"]])
        if page["next"] is None:
            break
        after = {"after": page["next"]}
    assert listed == [begun[:2], begun[2:4], begun[4:]]


@pytest.mark.parametrize(
    "params", [{"limit": "1001"}, {"limit": "0"}, {"after": "ses_none"}, {"page": "2"}]
)
async def test_an_impossible_page_of_sessions_is_refused(params: dict[str, str]) -> None:
    async with serving() as served:
        assert await status(served, "/v1/analytics/sessions", **params) == 422


async def test_a_page_has_a_thousand_sessions(served: Served) -> None:
    video = await add(served)
    for _ in range(1001):
        served.sandbox.viewing.begin(video, Visit())
    page = await read(served, "/v1/analytics/sessions")
    rest = await read(served, "/v1/analytics/sessions", after=page["next"])
    assert len(page["sessions"]) == 1000
    assert (len(rest["sessions"]), rest["next"]) == (1, None)


async def test_statistics_count_plays_viewers_and_leads(served: Served) -> None:
    tour, demo = await add(served), await add(served, title="Demo")
    await watch(served, tour, 0, 100, **ADA)
    await watch(served, tour, 0, 30, **ADA)
    await watch(served, tour, 0, 50)
    form = {"video": tour, "email": "eve@example.org", "name": "Eve"}
    await served.control("viewers/lead", form)
    stats = await read(served, "/v1/stats", days="2")
    figures = {"plays": 4, "viewers": 3, "watchedSeconds": 180.0, "leads": 1}
    nothing = {"plays": 0, "viewers": 0, "watchedSeconds": 0.0, "leads": 0}
    assert stats == {
        "from": "2026-03-01",
        "to": TODAY,
        "totals": {**figures, "completionRate": 0.3333},
        "days": [{"date": "2026-03-01", "plays": 0}, {"date": TODAY, "plays": 4}],
        "videos": [
            {"id": tour, "title": "Tour", **figures, "completionRate": 0.3333},
            {"id": demo, "title": "Demo", **nothing, "completionRate": 0.0},
        ],
        "pages": [{"page": "https://www.example.com/", "plays": 4}],
        "campaigns": [],
    }


async def test_the_statistics_of_a_video_show_its_retention(served: Served) -> None:
    tour = await add(served)
    await watch(served, tour, 0, 52, **ADA)
    await watch(served, tour, 48, 95, **ADA)
    await watch(served, tour, 0, 50)
    stats = await read(served, f"/v1/videos/{tour}/stats")
    assert stats["video"] == {"id": tour, "title": "Tour"}
    assert (stats["plays"], stats["viewers"], stats["completionRate"]) == (3, 2, 0.5)
    by_percent = {point["percent"]: point["viewers"] for point in stats["retention"]}
    assert list(by_percent) == list(range(0, 101, 5))
    assert [by_percent[each] for each in (0, 50, 55, 95, 100)] == [2, 2, 1, 1, 0]
    assert stats["countries"] == [{"country": "DE", "plays": 3}]
    assert stats["devices"] == [{"device": "desktop", "plays": 3}]


async def test_statistics_are_also_csv(served: Served) -> None:
    tour = await add(served, title='Tour, "the long one"')
    await watch(served, tour, 0, 95, **ADA)
    workspace = await served.ask("GET", "/v1/stats", params={"format": "csv"})
    video = await served.ask("GET", f"/v1/videos/{tour}/stats", params={"format": "csv"})
    assert workspace.headers["Content-Type"] == "text/csv; charset=utf-8"
    (line,) = csv.DictReader(io.StringIO(workspace.text))
    assert line == {
        "id": tour,
        "title": 'Tour, "the long one"',
        "plays": "1",
        "viewers": "1",
        "watchedSeconds": "95.0",
        "leads": "0",
        "completionRate": "1.0",
    }
    points = list(csv.DictReader(io.StringIO(video.text)))
    assert points[-2:] == [{"percent": "95", "viewers": "1"}, {"percent": "100", "viewers": "0"}]


async def test_a_period_includes_both_of_its_ends(served: Served) -> None:
    video = await add(served)
    for _ in range(4):
        await watch_at_once(served, video)
        await served.step(DAY_S)
    plays = {}
    for period in ({"days": "1"}, {"days": "2"}, {"days": "5"}, {}):
        stats = await read(served, "/v1/stats", **period)
        plays[period.get("days")] = stats["totals"]["plays"]
    between = await read(served, "/v1/stats", **{"from": "2026-03-03", "to": "2026-03-04"})
    assert plays == {"1": 0, "2": 1, "5": 4, None: 4}
    assert [each["date"] for each in between["days"]] == ["2026-03-03", "2026-03-04"]
    assert between["totals"]["plays"] == 2


async def watch_at_once(served: Served, video: str) -> None:
    from_to = {"video": video, "from": 0, "to": 0}
    await served.control("viewers/watch", from_to)
    await served.step(0)


@pytest.mark.parametrize(
    "params",
    [
        {"days": "0"},
        {"days": "367"},
        {"days": "x"},
        {"days": "3", "from": TODAY, "to": TODAY},
        {"from": TODAY},
        {"to": TODAY},
        {"from": TODAY, "to": "2026-03-01"},
        {"from": "2024-01-01", "to": TODAY},
        {"from": "02.03.2026", "to": TODAY},
        {"format": "xlsx"},
    ],
)
@pytest.mark.parametrize("path", ["/v1/stats", "/v1/videos/{video}/stats"])
async def test_an_impossible_period_is_refused(path: str, params: dict[str, str]) -> None:
    async with serving() as served:
        path = path.format(video=await add(served))
        assert await status(served, path, **params) == 422


async def test_a_report_groups_and_measures_as_it_was_asked_to(served: Served) -> None:
    tour = await add(served)
    await watch(served, tour, 0, 30, **ADA)
    await watch(served, tour, 0, 30)
    rows = {}
    for group in ("video", "day", "country", "device", "page"):
        body = {"groupBy": group, "metrics": ["plays", "viewers", "watchedSeconds", "leads"]}
        answer = await served.ask("POST", "/v1/analytics/report", json=body, access="Read only")
        assert answer.status_code == 201, answer.text
        assert answer.json()["report"]["id"] is None
        (rows[group],) = answer.json()["rows"]
    figures = {"plays": 2, "viewers": 2, "watchedSeconds": 60.0, "leads": 0}
    assert rows == {
        "video": {"video": {"id": tour, "title": "Tour"}, **figures},
        "day": {"day": TODAY, **figures},
        "country": {"country": "DE", **figures},
        "device": {"device": "desktop", **figures},
        "page": {"page": "https://www.example.com/", **figures},
    }


async def test_a_saved_report_shows_what_is_true_when_it_is_run(served: Served) -> None:
    video = await add(served)
    body = {"groupBy": "video", "metrics": ["plays"], "days": 1, "save": "Today"}
    made = (await served.ask("POST", "/v1/analytics/report", json=body)).json()
    path = f"/v1/analytics/reports/{made['report']['id']}/run"
    await watch(served, video, 0, 10)
    run = await read(served, path)
    await served.step(DAY_S)
    tomorrow = await read(served, path)
    unknown = await status(served, "/v1/analytics/reports/rep_none/run")
    assert made["report"] == {
        "id": made["report"]["id"],
        "name": "Today",
        "groupBy": "video",
        "metrics": ["plays"],
        "days": 1,
        "from": None,
        "to": None,
    }
    assert (made["rows"], tomorrow["rows"]) == ([], [])
    assert [row["plays"] for row in run["rows"]] == [1]
    assert unknown == 404


async def test_a_saved_report_keeps_its_dates(served: Served) -> None:
    video = await add(served)
    await watch(served, video, 0, 10)
    dates = {"from": TODAY, "to": TODAY}
    body = {"groupBy": "day", "metrics": ["plays"], "save": "That day", **dates}
    made = (await served.ask("POST", "/v1/analytics/report", json=body)).json()
    await served.step(9 * DAY_S)
    run = await read(served, f"/v1/analytics/reports/{made['report']['id']}/run")
    assert run == made
    assert run["report"]["days"] is None
    assert {name: run["report"][name] for name in dates} == dates


@pytest.mark.parametrize(
    "body",
    [
        {"groupBy": "moon", "metrics": ["plays"]},
        {"groupBy": "day", "metrics": ["joy"]},
        {"groupBy": "day", "metrics": []},
        {"groupBy": "day"},
        {"groupBy": "day", "metrics": ["plays"], "days": 3, "from": TODAY, "to": TODAY},
    ],
)
async def test_a_report_of_what_is_not_known_is_refused(body: dict[str, Any]) -> None:
    async with serving() as served:
        answer = await served.ask("POST", "/v1/analytics/report", json=body)
    assert answer.status_code == 422


async def test_videos_are_compared_in_the_order_asked_for(served: Served) -> None:
    tour, demo = await add(served), await add(served, title="Demo")
    await watch(served, tour, 0, 100, **ADA)
    both = await read(served, "/v1/analytics/compare", videos=f"{demo},{tour}")
    unknown = await status(served, "/v1/analytics/compare", videos=f"{demo},vid_none")
    many = await status(
        served, "/v1/analytics/compare", videos=",".join(f"vid_{n}" for n in range(21))
    )
    assert [(each["id"], each["plays"]) for each in both["videos"]] == [(demo, 0), (tour, 1)]
    assert both["videos"][1]["completionRate"] == 1.0
    assert (unknown, many) == (404, 422)


async def test_a_deleted_video_keeps_its_views_and_loses_its_own_statistics(served: Served) -> None:
    video = await add(served)
    await watch(served, video, 0, 95, **ADA)
    await served.ask("DELETE", f"/v1/videos/{video}", params={"permanent": "true"})
    stats = await read(served, "/v1/stats")
    viewer = await read(served, "/v1/analytics/viewer", email=ADA["email"])
    gone = await status(served, f"/v1/videos/{video}/stats")
    assert [(each["title"], each["plays"]) for each in stats["videos"]] == [("Tour", 1)]
    assert viewer["videos"][0]["finished"]
    assert gone == 404


@pytest.mark.parametrize(
    "body",
    [
        {"from": 50, "to": 40},
        {"from": 0, "to": 101},
        {"from": -1},
        {"email": "no address"},
        {"video": "vid_none"},
    ],
)
async def test_a_control_that_asks_for_the_impossible_leaves_no_view(body: dict[str, Any]) -> None:
    async with serving() as served:
        video = await add(served)
        answer = await served.client.post("/sandbox/viewers/watch", json={"video": video, **body})
        page = await read(served, "/v1/analytics/sessions")
    assert answer.status_code in {404, 422}
    assert page["sessions"] == []


async def test_an_endpoint_hears_of_the_truth_and_the_api_says_the_same() -> None:
    async with serving() as served, StubServer() as destination:
        await served.register(destination.url(), "video.watched", "lead.captured")
        served.sandbox.populate(viewers=60, videos=6)
        await served.step(2 * DAY_S)
        truth = (await served.client.get("/sandbox/truth")).json()
        sessions = (await read(served, "/v1/analytics/sessions"))["sessions"]
        stats = await read(served, "/v1/stats")
        said = [await said_of(served, email) for email in sorted(addresses(sessions))]
    events = [json.loads(request.body) for request in destination.requests]
    watched = {key(each["data"]) for each in events if each["event"] == "video.watched"}
    leads = {each["data"]["id"] for each in events if each["event"] == "lead.captured"}
    assert len(watched) > 100
    assert len(watched) + len(leads) == len(events)
    assert watched == {
        (row["email"], row["video"]["id"], row["milestone"]) for row in truth["milestones"]
    }
    assert watched == set().union(*said)
    assert leads == {row["lead"]["id"] for row in truth["leads"]}
    assert leads == {lead["id"] for session in sessions for lead in session["submitted"]}
    assert len(sessions) == stats["totals"]["plays"]
    assert len(stats["campaigns"]) == 4


def key(data: dict[str, Any]) -> tuple[str, str, str]:
    return data["viewer"]["email"], data["video"]["id"], data["milestone"]


def addresses(sessions: list[dict[str, Any]]) -> set[str]:
    return {session["viewer"]["email"] for session in sessions if session["viewer"]}


async def said_of(served: Served, email: str) -> set[tuple[str, str, str]]:
    """The milestones that the API's answer about a viewer tells of."""
    answer = await read(served, "/v1/analytics/viewer", email=email)
    least = {"started": 0, "25%": 25, "50%": 50, "75%": 75, "completed": 90}
    return {
        (email, watched["video"]["id"], milestone)
        for watched in answer["videos"]
        for milestone, percent in least.items()
        if watched["watchedPercent"] >= percent
    }
