import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.core.event import MILESTONES
from relay.sandbox.errors import Refusal
from relay.sandbox.viewing import Visit
from tests.conftest import NOW_MS
from tests.sandbox.studio import Studio

ADA = Visit(email="Ada@example.com", name="Ada")


async def test_milestones_are_published_when_their_positions_are_reached() -> None:
    studio = Studio()
    video = studio.video(duration_s=200)
    session = studio.viewing.begin(video, ADA)
    studio.viewing.watch(session.id, 0, 200)
    await studio.run(300)
    assert [(milestone, at_ms - NOW_MS) for milestone, at_ms in studio.watched()] == [
        ("started", 0),
        ("25%", 50_000),
        ("50%", 100_000),
        ("75%", 150_000),
        ("completed", 180_000),
    ]


async def test_an_event_says_the_video_the_viewer_and_the_progress() -> None:
    studio = Studio()
    video = studio.video(duration_s=100, title="Tour")
    session = studio.viewing.begin(video, ADA)
    studio.viewing.watch(session.id, 0, 100)
    await studio.run(100)
    assert studio.published("video.watched")[-1] == {
        "video": {"id": video, "title": "Tour"},
        "viewer": {"email": "ada@example.com", "name": "Ada"},
        "progress": 100,
        "milestone": "completed",
        "completed": True,
    }


async def test_the_speed_shortens_the_view_and_not_what_was_seen() -> None:
    studio = Studio(speed=60)
    session = studio.viewing.begin(studio.video(duration_s=600), ADA)
    studio.viewing.watch(session.id, 0, 600)
    await studio.run(10)
    assert session.parts == [(0, 600)]
    assert [at_ms - NOW_MS for _, at_ms in studio.watched()] == [0, 2500, 5000, 7500, 9000]


async def test_a_change_of_speed_in_a_view_neither_adds_nor_loses_a_second() -> None:
    studio = Studio(speed=10)
    session = studio.viewing.begin(studio.video(duration_s=600), ADA)
    studio.viewing.watch(session.id, 0, 600)
    await studio.run(20)
    studio.schedule.set_speed(1)
    await studio.run(50)
    studio.schedule.stop()
    await studio.run(1000)
    studio.viewing.catch_up()
    assert session.parts == [(0, 250)]


async def test_parts_of_several_visits_count_together_and_each_milestone_once() -> None:
    studio = Studio()
    video = studio.video(duration_s=100)
    for start_s, end_s in ((0, 30), (0, 30), (20, 60), (55, 95)):
        await studio.view(video, ADA, (start_s, end_s))
    assert [milestone for milestone, _ in studio.watched()] == list(MILESTONES)


async def test_skipped_parts_are_not_counted_as_seen() -> None:
    studio = Studio()
    session = studio.viewing.begin(studio.video(duration_s=100), ADA)
    studio.viewing.watch(session.id, 0, 100)
    await studio.run(10)
    studio.viewing.watch(session.id, 80, 100)
    await studio.run(100)
    assert session.parts == [(0, 10), (80, 100)]
    assert [milestone for milestone, _ in studio.watched()] == ["started", "25%"]


async def test_a_pause_keeps_the_position_and_passes_nothing() -> None:
    studio = Studio()
    session = studio.viewing.begin(studio.video(duration_s=100), ADA)
    studio.viewing.watch(session.id, 0, 100)
    await studio.run(24)
    studio.viewing.pause(session.id)
    await studio.run(1000)
    studio.viewing.end(session.id)
    assert session.parts == [(0, 24)]
    assert len(studio.watched()) == 1


async def test_an_anonymous_view_publishes_nothing_and_keeps_what_it_passed() -> None:
    studio = Studio()
    session = await studio.view(studio.video(duration_s=100), Visit(), (0, 100))
    assert studio.watched() == []
    assert list(session.passed) == list(MILESTONES)
    assert session.finished


async def test_a_form_sends_the_milestones_of_the_view_so_far_and_those_after_it() -> None:
    studio = Studio()
    session = studio.viewing.begin(studio.video(duration_s=100), Visit())
    studio.viewing.watch(session.id, 0, 100)
    await studio.run(60)
    studio.viewing.submit(session.id, email="eve@example.org", name="Eve", fields={"a": "b"})
    assert studio.kinds() == ["lead.captured"] + ["video.watched"] * 3
    await studio.run(40)
    times = [at_ms - NOW_MS for _, at_ms in studio.watched()]
    assert times == [60_000, 60_000, 60_000, 75_000, 90_000]
    assert session.passed["25%"] == NOW_MS + 25_000


async def test_a_form_lets_earlier_visits_with_its_address_count() -> None:
    studio = Studio()
    video = studio.video(duration_s=100)
    await studio.view(video, ADA, (0, 60))
    session = studio.viewing.begin(video, Visit())
    studio.viewing.watch(session.id, 60, 100)
    await studio.run(10)
    studio.viewing.submit(session.id, email="ADA@example.com ", name="Ada", fields={})
    await studio.run(6)
    assert [milestone for milestone, _ in studio.watched()] == list(MILESTONES[:-1])
    await studio.run(14)
    assert [milestone for milestone, _ in studio.watched()] == list(MILESTONES)


async def test_a_lead_is_published_as_the_service_writes_it() -> None:
    studio = Studio()
    video = studio.video(duration_s=100, title="Tour")
    session = studio.viewing.begin(video, Visit())
    lead = studio.viewing.submit(
        session.id, email="Eve@example.org", name="Eve", fields={"company": "Contoso"}
    )
    assert studio.published("lead.captured") == [
        {
            "id": lead.id,
            "email": "Eve@example.org",
            "name": "Eve",
            "fields": {"company": "Contoso"},
            "video": {"id": video, "title": "Tour"},
            "createdAt": "2026-03-02T09:30:00.000Z",
        }
    ]
    assert session.submitted == [lead]


async def test_a_form_with_another_address_leaves_the_viewer_of_a_view() -> None:
    studio = Studio()
    session = studio.viewing.begin(studio.video(duration_s=100), ADA)
    studio.viewing.submit(session.id, email="eve@example.org", name="Eve", fields={})
    assert session.email == "ada@example.com"
    assert {row.email for row in studio.workspace.milestones} == {"ada@example.com"}


async def test_a_person_who_submitted_a_form_is_known_in_later_views() -> None:
    studio = Studio()
    person = studio.person()
    session = studio.viewing.begin(studio.video(duration_s=100), Visit(person=person.id))
    studio.viewing.submit(session.id, email="eve@example.org", name="Eve", fields={})
    later = studio.viewing.begin(studio.video(duration_s=50), Visit(person=person.id))
    assert later.email == "eve@example.org"
    assert len(studio.watched()) == 2


async def test_a_shortened_video_gives_no_milestone_to_those_who_saw_the_longer_one() -> None:
    studio = Studio()
    video = studio.video(duration_s=100)
    await studio.view(video, ADA, (0, 40))
    studio.workspace.videos[video].duration_s = 50
    session = await studio.view(video, ADA, (0, 10))
    assert session.duration_s == 50
    assert [milestone for milestone, _ in studio.watched()] == ["started", "25%"]


async def test_views_left_open_by_an_earlier_run_have_ended_and_count() -> None:
    studio = Studio()
    video = studio.video(duration_s=100)
    session = studio.viewing.begin(video, ADA)
    studio.viewing.watch(session.id, 0, 100)
    await studio.run(30)
    again = Studio(workspace=studio.workspace)
    assert session.ended_ms is not None
    assert again.viewing.begin(video, ADA).email == session.email
    assert again.watched() == []


@pytest.mark.parametrize("status", ["uploading", "processing", "failed"])
def test_only_ready_videos_can_be_watched(status: str) -> None:
    studio = Studio()
    video = studio.video(duration_s=100)
    studio.workspace.videos[video].status = status  # type: ignore[assignment]
    with pytest.raises(Refusal) as refusal:
        studio.viewing.begin(video, ADA)
    assert refusal.value.status == 409


def test_trashed_and_unknown_videos_cannot_be_watched() -> None:
    studio = Studio()
    video = studio.video(duration_s=100)
    studio.workspace.videos[video].trashed = True
    statuses = []
    for each in (video, "vid_none"):
        with pytest.raises(Refusal) as refusal:
            studio.viewing.begin(each, ADA)
        statuses.append(refusal.value.status)
    assert statuses == [409, 404]


def test_an_ended_view_takes_nothing_more() -> None:
    studio = Studio()
    session = studio.viewing.begin(studio.video(duration_s=100), ADA)
    studio.viewing.end(session.id)
    for act in (studio.viewing.end, studio.viewing.pause):
        with pytest.raises(Refusal, match="has ended"):
            act(session.id)
    with pytest.raises(Refusal):
        studio.viewing.end("ses_none")


@pytest.mark.parametrize("part", [(-1, 5), (5, 4), (0, 101)])
def test_a_part_outside_the_video_is_refused(part: tuple[float, float]) -> None:
    studio = Studio()
    session = studio.viewing.begin(studio.video(duration_s=100), ADA)
    with pytest.raises(Refusal) as refusal:
        studio.viewing.watch(session.id, *part)
    assert refusal.value.status == 422


seconds = st.integers(0, 97_000).map(lambda ms: ms / 1000)
visits = st.lists(st.tuples(seconds, seconds, st.integers(0, 120)), min_size=1, max_size=8)


@pytest.mark.servers
@given(visits, st.sampled_from([1, 7, 60]))
async def test_however_a_video_is_watched_the_milestones_are_those_of_the_union(
    plan: list[tuple[float, float, int]], speed: float
) -> None:
    studio = Studio(speed=speed)
    video = studio.video(duration_s=97)
    sessions = []
    for one, other, stay_s in plan:
        session = studio.viewing.begin(video, ADA)
        studio.viewing.watch(session.id, min(one, other), max(one, other))
        await studio.run(stay_s / speed)
        studio.viewing.end(session.id)
        sessions.append(session)
        milliseconds: set[int] = set()
        for each in sessions:
            for start_s, end_s in each.parts:
                milliseconds.update(range(round(start_s * 1000), round(end_s * 1000)))
        share = len(milliseconds) / 97_000
        expected = [0.0, 0.25, 0.5, 0.75, 0.9]
        reached = MILESTONES[: sum(share >= least - 1e-9 for least in expected)]
        assert tuple(milestone for milestone, _ in studio.watched()) == reached
