"""A simulated week: the analytics are held against the published events."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

import pytest

from relay.core.event import MILESTONES
from relay.core.sample_events import event
from relay.sandbox import coverage
from relay.sandbox.analytics import statistics, views
from relay.sandbox.analytics.period import period
from relay.sandbox.analytics.records import SessionRecord
from relay.sandbox.model import Workspace
from relay.sandbox.population import Population
from relay.sandbox.truth import truth
from relay.sandbox.viewing import Visit
from tests.conftest import NOW_MS
from tests.sandbox.studio import Studio

ADDRESS = "ada@visitors.example.com"
DAY_S = 86_400
WEEK_S = 7 * DAY_S


def populated(*, seed: int = 7, speed: float = 1, viewers: int = 200) -> Studio:
    studio = Studio(speed=speed, workspace=Workspace(seed=seed))
    populate(studio, viewers=viewers)
    return studio


def populate(studio: Studio, *, viewers: int, videos: int = 12) -> None:
    population = Population(
        studio.workspace, studio.schedule, viewing=studio.viewing, library=studio.library
    )
    population.start(viewers=viewers, videos=videos)


@pytest.fixture(scope="module")
async def week() -> Studio:
    """A week of 200 viewers and 12 videos, at its end as far as each view has come."""
    studio = populated()
    await studio.run(WEEK_S)
    studio.viewing.catch_up()
    return studio


@dataclass
class Published:
    """What the events said: the milestones of each viewer and video, and the leads."""

    milestones: dict[tuple[str, str], list[str]] = field(default_factory=lambda: defaultdict(list))
    leads: list[str] = field(default_factory=list)

    @classmethod
    def by(cls, studio: Studio) -> "Published":
        published = cls()
        for data in studio.published("video.watched"):
            pair = data["viewer"]["email"], data["video"]["id"]
            published.milestones[pair].append(data["milestone"])
        published.leads = [data["id"] for data in studio.published("lead.captured")]
        return published


def all_sessions(studio: Studio) -> list[SessionRecord]:
    """Every session, page by page as the API gives them."""
    sessions: list[SessionRecord] = []
    after = None
    while True:
        page = views.session_page(studio.workspace, after=after)
        assert len(page.sessions) <= 1000
        sessions += page.sessions
        after = page.next
        if after is None:
            return sessions


async def test_every_milestone_is_published_once_and_in_order(week: Studio) -> None:
    published = Published.by(week)
    assert len(published.milestones) > 500
    for milestones in published.milestones.values():
        assert milestones == list(MILESTONES[: len(milestones)])


async def test_viewers_histories_say_what_was_published(week: Studio) -> None:
    published = Published.by(week)
    said = {}
    for email in {session.email for session in week.workspace.sessions.values()} - {None}:
        history = views.viewer_history(week.workspace, email or "", now_ms=week.clock.now_ms())
        for watched in history.videos:
            milestones = list(coverage.passed(watched.watched_percent))
            assert watched.finished == ("completed" in milestones)
            said[history.viewer.email, watched.video.id] = milestones
    assert said == published.milestones


async def test_sessions_say_who_watched_finished_and_submitted(week: Studio) -> None:
    published = Published.by(week)
    sessions = all_sessions(week)
    assert len({session.id for session in sessions}) == len(sessions) > 1000
    assert [each.started_at for each in sessions] == sorted(each.started_at for each in sessions)
    watched, finished = set(), set()
    for session in sessions:
        if session.viewer is None:
            continue
        pair = session.viewer.email, session.video.id
        watched.add(pair)
        if session.finished:
            finished.add(pair)
        alone = coverage.passed(session.watched_percent)
        assert set(alone) <= set(published.milestones[pair])
    assert watched == set(published.milestones)
    assert finished == {p for p, reached in published.milestones.items() if "completed" in reached}
    submitted = [lead.id for session in sessions for lead in session.submitted]
    assert sorted(submitted) == sorted(published.leads)


async def test_many_finish_a_video_only_across_visits(week: Studio) -> None:
    finished = {
        (session.viewer.email, session.video.id)
        for session in all_sessions(week)
        if session.viewer is not None and coverage.is_finished(session.watched_percent)
    }
    completed = {
        (row.email, row.video) for row in week.workspace.milestones if row.milestone == "completed"
    }
    assert finished < completed
    assert len(completed - finished) > 20


async def test_statistics_add_up_to_the_sessions(week: Studio) -> None:
    sessions = all_sessions(week)
    in_period = period(days=8, first=None, last=None, now_ms=week.clock.now_ms())
    stats = statistics.workspace_stats(week.workspace, in_period)
    assert stats.totals.plays == len(sessions) == sum(each.plays for each in stats.days)
    assert stats.totals.leads == len(Published.by(week).leads)
    assert stats.totals.watched_seconds == pytest.approx(
        sum(session.watched_seconds for session in sessions)
    )
    by_video = Counter(session.video.id for session in sessions)
    assert {each.id: each.plays for each in stats.videos if each.plays} == by_video
    for video_id in week.workspace.videos:
        one = statistics.video_stats(week.workspace, video_id, in_period)
        assert one.plays == by_video[video_id]
        assert sum(each.plays for each in one.countries) == one.plays
        assert max(point.viewers for point in one.retention) <= one.viewers


async def test_the_truth_lists_what_was_published_and_what_was_not(week: Studio) -> None:
    listed = truth(week.workspace)
    published = [
        (data["viewer"]["email"], data["video"]["id"], data["milestone"])
        for data in week.published("video.watched")
    ]
    assert [(each.email, each.video.id, each.milestone) for each in listed.milestones] == published
    assert [each.lead.id for each in listed.leads] == Published.by(week).leads
    anonymous = {each.id for each in all_sessions(week) if each.viewer is None}
    assert {each.session for each in listed.anonymous} == anonymous
    assert len(anonymous) > 200


async def test_the_library_changes_in_every_documented_way(week: Studio) -> None:
    assert {kind for _, kind, _ in week.events} == {
        "video.created",
        "video.ready",
        "video.failed",
        "video.deleted",
        "video.watched",
        "lead.captured",
    }
    assert {data["trashed"] for data in week.published("video.deleted")} == {True, False}
    assert max(data["version"] for data in week.published("video.ready")) > 1
    ready = [each for each in week.workspace.videos.values() if each.status == "ready"]
    assert 12 <= len(ready) <= 20


async def test_all_three_kinds_of_people_are_among_the_viewers(week: Studio) -> None:
    people = week.workspace.people
    assert len({person.name for person in people.values()}) == 200
    named = [person.email for person in people.values() if person.email]
    assert len(set(named)) == len(named)
    assert all(email.endswith(("example.com", "example.org")) for email in named)
    told = {lead.email for each in week.workspace.sessions.values() for lead in each.submitted}
    assert told & set(named)
    assert len(people) - len(named) > 30


async def test_events_have_the_fields_of_the_samples(week: Studio) -> None:
    for kind in ("video.watched", "lead.captured", "video.deleted", "video.failed", "video.ready"):
        assert shape(week.published(kind)[-1]) == shape(event(kind).document()["data"])


def shape(data: dict[str, Any]) -> dict[str, Any]:
    """The names of a document, without those that a form has of its own."""
    return {
        name: shape(value) if isinstance(value, dict) and name != "fields" else None
        for name, value in data.items()
    }


async def test_the_same_seed_simulates_the_same_week() -> None:
    one, other = populated(viewers=30), populated(viewers=30)
    await one.run(2 * DAY_S)
    for _ in range(48):
        await other.run(DAY_S / 24)
    assert one.events == other.events
    assert one.workspace.sessions == other.workspace.sessions


async def test_another_seed_simulates_another_week() -> None:
    one, other = populated(viewers=30), populated(viewers=30, seed=8)
    await one.run(DAY_S)
    await other.run(DAY_S)
    assert one.events != other.events


async def test_the_speed_changes_neither_who_watches_nor_what() -> None:
    slow, fast = populated(viewers=30), populated(viewers=30, speed=3600)
    await slow.run(2 * DAY_S)
    await fast.run(2 * DAY_S / 3600)
    assert Published.by(slow).milestones == Published.by(fast).milestones


async def test_a_view_of_a_control_changes_nothing_for_the_others() -> None:
    one, other = populated(viewers=10), populated(viewers=10)
    await one.run(DAY_S / 2)
    video = next(iter(one.workspace.videos))
    one.viewing.end(one.viewing.begin(video, Visit(email=ADDRESS)).id)
    await one.run(DAY_S / 2)
    await other.run(DAY_S)
    mine = {pair: what for pair, what in Published.by(one).milestones.items() if pair[0] != ADDRESS}
    assert mine == Published.by(other).milestones


async def test_a_population_goes_on_after_a_restart_with_the_same_people() -> None:
    studio = populated(viewers=20)
    await studio.run(DAY_S)
    people = dict(studio.workspace.people)
    videos = set(studio.workspace.videos)
    again = Studio(workspace=studio.workspace)
    again.clock.step_to(NOW_MS + DAY_S * 1000)
    populate(again, viewers=25)
    await again.run(2 * DAY_S)
    assert list(again.workspace.people)[:20] == list(people)
    assert len(again.workspace.people) == 25
    assert videos & set(again.workspace.videos)
    pairs = [(row.email, row.video, row.milestone) for row in again.workspace.milestones]
    assert len(set(pairs)) == len(pairs)


async def test_without_viewers_nothing_happens() -> None:
    studio = populated(viewers=0)
    events = len(studio.events)
    await studio.run(WEEK_S)
    assert len(studio.events) == events == 24
