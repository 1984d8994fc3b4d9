"""Changes of videos that the list shows and the store has not seen."""

from collections.abc import Mapping, Sequence

from relay.reconciliation.library import Doubt, LibraryChanges, compare
from relay.reconciliation.period import Period
from relay.store.reconstructions import KnownVideo
from relay.video_service.api.records import Video
from tests.conftest import NOW_MS

HOUR_MS = 3_600_000
SINCE_MS = NOW_MS - 10 * HOUR_MS
PERIOD = Period.of(since_ms=SINCE_MS, until_ms=NOW_MS, now_ms=NOW_MS, returned_ms=NOW_MS - HOUR_MS)
JUST_BACK = Period.of(since_ms=SINCE_MS, until_ms=NOW_MS, now_ms=NOW_MS, returned_ms=NOW_MS)


def video(
    status: str = "ready",
    *,
    created_h: float = -50,
    updated_h: float = 1,
    version: int = 1,
    trashed: bool = False,
) -> Video:
    return Video(
        id="vid_1",
        title="Tour",
        status=status,
        version=version,
        trashed=trashed,
        created_ms=SINCE_MS + round(created_h * HOUR_MS),
        updated_ms=SINCE_MS + round(updated_h * HOUR_MS),
    )


def known(*changes: str, seen_h: float = -1) -> KnownVideo:
    at_ms = SINCE_MS + round(seen_h * HOUR_MS)
    return KnownVideo("vid_1", "Tour", dict.fromkeys(changes, at_ms), at_ms)


def found(
    *listed: Video,
    store: KnownVideo | None = None,
    period: Period = PERIOD,
    forgotten_h: float = -99,
) -> LibraryChanges:
    return compare(
        listed,
        [] if store is None else [store],
        period,
        now_ms=NOW_MS,
        forgotten_ms=SINCE_MS + round(forgotten_h * HOUR_MS),
    )


def kinds(result: LibraryChanges) -> Mapping[str, int]:
    return {change.kind: change.at_ms - SINCE_MS for change in result.changes}


def reasons(doubts: Sequence[Doubt]) -> list[str]:
    return [doubt.reason for doubt in doubts]


def test_a_new_video_was_created_and_is_ready() -> None:
    result = found(video(created_h=1, updated_h=2))
    assert kinds(result) == {"video.created": HOUR_MS, "video.ready": 2 * HOUR_MS}


def test_a_new_video_that_failed_was_created_and_failed() -> None:
    assert set(kinds(found(video("failed", created_h=1)))) == {"video.created", "video.failed"}


def test_a_new_video_that_is_not_ready_yet_was_created() -> None:
    assert set(kinds(found(video("processing", created_h=1)))) == {"video.created"}


def test_a_video_that_came_after_the_list_was_read_is_left_to_the_next_run() -> None:
    result = found(store=known("created", seen_h=10))
    assert (kinds(result), reasons(result.left)) == ({}, ["video_recent"])


def test_a_restored_video_may_have_been_processed_before_the_store_knew_it() -> None:
    result = found(video(), store=known("trashed"))
    assert (kinds(result), reasons(result.unsure)) == ({}, ["older_video"])


def test_events_in_the_store_are_not_reconstructed() -> None:
    result = found(video(created_h=1), store=known("created", "ready 1", seen_h=1))
    assert kinds(result) == {}


def test_a_new_version_of_a_known_video_is_ready_again() -> None:
    result = found(video(version=4), store=known("created", "ready 1"))
    assert set(kinds(result)) == {"video.ready"}
    assert reasons(result.unsure) == ["version_gone", "version_gone"]


def test_a_version_of_a_video_that_the_store_does_not_know_is_unsure() -> None:
    result = found(video())
    assert (kinds(result), reasons(result.unsure)) == ({}, ["older_video"])


def test_a_change_outside_of_the_period_is_left_out() -> None:
    assert found(video(updated_h=-1)).changes == []
    result = found(video(updated_h=9.95, version=2), store=known("ready 1"))
    assert (result.changes, reasons(result.left)) == ([], ["video_recent"])


def test_a_video_in_trash_was_moved_there() -> None:
    result = found(video(trashed=True), store=known("created", "ready 1"))
    (change,) = result.changes
    assert (change.kind, change.video.trashed) == ("video.deleted", True)


def test_a_video_that_is_gone_was_deleted_for_good() -> None:
    result = found(store=known("created", "trashed"))
    (change,) = result.changes
    assert (change.kind, change.video.id, change.video.trashed) == ("video.deleted", "vid_1", False)
    assert reasons(result.unsure) == []


def test_a_video_that_is_gone_may_have_been_in_trash_before() -> None:
    assert reasons(found(store=known("created")).unsure) == ["trash_gone"]


def test_a_deletion_that_was_seen_is_not_made_again() -> None:
    assert found(store=known("deleted")).changes == []


def test_a_deletion_that_may_have_been_forgotten_is_unsure() -> None:
    result = found(store=known("created", seen_h=-20), forgotten_h=-10)
    assert (result.changes, reasons(result.unsure)) == ([], ["deletion_forgotten"])


def test_a_deletion_right_after_an_absence_may_still_come() -> None:
    result = found(store=known("created"), period=JUST_BACK)
    assert (result.changes, reasons(result.left)) == ([], ["video_recent"])


def test_a_restored_video_was_moved_to_trash_again() -> None:
    result = found(video(trashed=True), store=known("created", "ready 1", "trashed"))
    assert kinds(result) == {"video.deleted": HOUR_MS}
    older = found(video(trashed=True), store=known("trashed"))
    assert "video.deleted" in kinds(older)


def test_a_move_that_was_received_is_no_other_move() -> None:
    seen = known("created", "ready 1", "trashed", seen_h=1)
    assert kinds(found(video(trashed=True), store=seen)) == {}


def test_a_version_that_was_processed_in_trash_is_no_move() -> None:
    trashed = video(version=2, trashed=True)
    assert kinds(found(trashed, store=known("created", "ready 1", "trashed"))) == {}


def test_a_video_that_was_only_watched_in_the_period_may_have_been_created_in_it() -> None:
    assert "creation_gone" in reasons(found(store=known(seen_h=1)).unsure)
    assert "creation_gone" not in reasons(found(store=known("created", seen_h=1)).unsure)
    assert "creation_gone" not in reasons(found(store=known(seen_h=-1)).unsure)


def test_a_doubt_names_its_video_and_its_kind() -> None:
    (doubt,) = found(store=known("created")).unsure
    assert (doubt.kind, doubt.video.id, doubt.video.title) == ("video.deleted", "vid_1", "Tour")
