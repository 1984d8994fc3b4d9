"""Which changes of videos the store has not seen: the list of videos against what it knows."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from relay.core.reconstruction import CLOCKS_MS, CREATED, DELETED, TRASHED, processed
from relay.reconciliation.period import Period
from relay.reconciliation.reasons import Reason
from relay.store.reconstructions import KnownVideo
from relay.store.rows import ERASED
from relay.video_service.api.records import Video

PROCESSED = {"ready": "video.ready", "failed": "video.failed"}
"""The kind of the event that a video's status implies."""


class LibraryChange(NamedTuple):
    """A change of a video that no event reported, made at `at_ms` or earlier."""

    kind: str
    video: Video
    at_ms: int


class Doubt(NamedTuple):
    """Why a change of a video may be missing."""

    reason: Reason
    kind: str
    video: Video


class LibraryChanges(msgspec.Struct):
    """Changes of videos in a period."""

    changes: list[LibraryChange] = msgspec.field(default_factory=list)
    unsure: list[Doubt] = msgspec.field(default_factory=list)
    left: list[Doubt] = msgspec.field(default_factory=list)


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
        is_over = known_video.id.startswith(ERASED) or DELETED in known_video.changes
        if known_video.id in listed_ids or is_over:
            continue
        video = Video(id=known_video.id, title=known_video.title, trashed=False)
        if known_video.seen_ms < forgotten_ms:
            comparison.unsure.append(Doubt("deletion_forgotten", "video.deleted", video))
        elif not period.is_quiet or known_video.seen_ms >= period.horizon_ms:
            comparison.left.append(Doubt("video_recent", "video.deleted", video))
        else:
            comparison.changes.append(LibraryChange("video.deleted", video, now_ms))
            _note_earlier_changes(known_video, video, period, comparison)
    return comparison


def _note_earlier_changes(
    known: KnownVideo, video: Video, period: Period, comparison: LibraryChanges
) -> None:
    """Name what a video that is gone may have gone through unseen."""
    if TRASHED not in known.changes:
        comparison.unsure.append(Doubt("trash_gone", "video.deleted", video))
    first_ms = min((known.seen_ms, *known.changes.values()))
    if CREATED not in known.changes and first_ms >= period.since_ms:
        comparison.unsure.append(Doubt("creation_gone", "video.created", video))


def _existing(
    video: Video, changes: Mapping[str, int], period: Period, comparison: LibraryChanges
) -> None:
    created_ms, updated_ms = video.created_ms, video.updated_ms
    is_new = created_ms is not None and period.has(created_ms)
    if created_ms is not None and is_new and CREATED not in changes:
        comparison.changes.append(LibraryChange("video.created", video, created_ms))
    if updated_ms is None or updated_ms < period.since_ms:
        return
    unseen = _unseen(video, changes, updated_ms)
    if updated_ms >= period.horizon_ms:
        comparison.left.extend(Doubt("video_recent", kind, video) for kind in unseen)
        return
    for kind in unseen:
        change = LibraryChange(kind, video, updated_ms)
        if kind == "video.deleted":
            comparison.changes.append(change)
        elif is_new or not video.trashed:
            # A change of place alone leaves a version that was processed before the period.
            _add_processed(change, changes, is_new=is_new, comparison=comparison)


def _unseen(video: Video, changes: Mapping[str, int], updated_ms: int) -> Iterator[str]:
    """Yield the kinds of the events that a video's last update implies, and the store lacks."""
    kind = PROCESSED.get(video.status or "")
    is_processed = kind is None or processed(kind, video.version) in changes
    if kind is not None and not is_processed:
        yield kind
    # Where no version is new, the last update of a restored video was another move.
    is_moved = is_processed or not any(map(_is_of_a_version, changes))
    is_later = max(changes.values(), default=0) + CLOCKS_MS < updated_ms
    if video.trashed and (TRASHED not in changes or (is_moved and is_later)):
        yield "video.deleted"


def _add_processed(
    change: LibraryChange, changes: Mapping[str, int], *, is_new: bool, comparison: LibraryChanges
) -> None:
    if is_new or any(map(_is_of_a_version, changes)):
        comparison.changes.append(change)
        _note_versions_gone(change.video, changes, is_new=is_new, comparison=comparison)
    else:
        # It may have been processed before the store knew of anything.
        comparison.unsure.append(Doubt("older_video", change.kind, change.video))


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
    gone = Doubt("version_gone", "video.ready", video)
    comparison.unsure.extend([gone] * len(unseen))
