"""Which changes of videos the store has not seen: the list of videos against what it knows."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from relay.core.reconstruction import CREATED, DELETED, TRASHED, processed
from relay.reconciliation.period import Period
from relay.reconciliation.reasons import Reason
from relay.store.reconstructions import KnownVideo
from relay.video_service.api.records import Video

PROCESSED = {"ready": "video.ready", "failed": "video.failed"}
"""The kind of the event that a video's status implies."""

ERASED = "erased-"
"""Ids of videos that an erasure replaced begin with this."""


class Change(NamedTuple):
    """A change of a video that no event reported, made at `at_ms` or earlier."""

    kind: str
    video: Video
    at_ms: int


class LibraryChanges(msgspec.Struct):
    """Changes of videos in a period."""

    changes: list[Change] = msgspec.field(default_factory=list)
    unsure: list[Reason] = msgspec.field(default_factory=list)
    left: list[Reason] = msgspec.field(default_factory=list)


def compare(
    listed: Sequence[Video],
    known: Iterable[KnownVideo],
    period: Period,
    *,
    now_ms: int,
    forgotten_ms: int,
) -> LibraryChanges:
    """Compare the whole list of videos with the store.

    A video that the store knows and the list does not show was deleted for good, at an unknown
    time, unless it came after the list was read. Deletions before `forgotten_ms` may have been seen
    and forgotten.
    """
    comparison, seen = LibraryChanges(), {video.id: video for video in known}
    for video in listed:
        changes = seen[video.id].changes if video.id in seen else {}
        _existing(video, changes, period, comparison)
    listed_ids = {video.id for video in listed}
    for known_video in seen.values():
        if known_video.id in listed_ids or known_video.id.startswith(ERASED):
            continue
        if DELETED in known_video.changes:
            continue
        if known_video.seen_ms < forgotten_ms:
            comparison.unsure.append("deletion_forgotten")
        elif not period.is_quiet or known_video.seen_ms >= period.horizon_ms:
            comparison.left.append("video_recent")
        else:
            video = Video(id=known_video.id, title=known_video.title, trashed=False)
            comparison.changes.append(Change("video.deleted", video, now_ms))
            if TRASHED not in known_video.changes:
                comparison.unsure.append("trash_gone")
    return comparison


def _existing(
    video: Video, changes: Mapping[str, int], period: Period, comparison: LibraryChanges
) -> None:
    created_ms, updated_ms = video.created_ms, video.updated_ms
    is_new = created_ms is not None and period.has(created_ms)
    if created_ms is not None and is_new and CREATED not in changes:
        comparison.changes.append(Change("video.created", video, created_ms))
    if updated_ms is not None and updated_ms >= period.horizon_ms:
        if _expected(video) - changes.keys():
            comparison.left.append("video_recent")
        return
    if updated_ms is None or not period.has(updated_ms):
        return
    kind = PROCESSED.get(video.status or "")
    # A change of place alone leaves a version that was processed before the period.
    is_processed = is_new or not video.trashed
    if kind is not None and is_processed and processed(kind, video.version) not in changes:
        if is_new or any(map(_is_of_a_version, changes)):
            comparison.changes.append(Change(kind, video, updated_ms))
            _note_versions_gone(video, changes, is_new=is_new, comparison=comparison)
        else:
            # It may have been processed before the store knew of anything.
            comparison.unsure.append("older_video")
    if video.trashed and TRASHED not in changes:
        comparison.changes.append(Change("video.deleted", video, updated_ms))


def _expected(video: Video) -> set[str]:
    kind = PROCESSED.get(video.status or "")
    expected = set() if kind is None else {processed(kind, video.version)}
    return expected | ({TRASHED} if video.trashed else set())


def _is_of_a_version(change: str) -> bool:
    """Whether the store would have seen that an older version was processed."""
    return change not in (TRASHED, DELETED)


def _note_versions_gone(
    video: Video, changes: Mapping[str, int], *, is_new: bool, comparison: LibraryChanges
) -> None:
    """Count the versions before the last one that the store has not seen either."""
    versions = {int(change.split()[1]) for change in changes if change.startswith("ready ")}
    first = 1 if is_new else max(versions, default=video.version or 1)
    unseen = set(range(first, video.version or 1)) - versions
    comparison.unsure.extend(["version_gone"] * len(unseen))
