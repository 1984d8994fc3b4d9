"""Reconstructed events: envelopes as the sender makes them, marked, with an id of what they say."""

from collections.abc import Mapping
from typing import Any

import orjson

from relay.core import reconstruction
from relay.core.event import LEAD_CAPTURED, MILESTONES, PROGRESS, VIDEO_WATCHED, Event, rfc3339
from relay.reconciliation.library import LibraryChange
from relay.reconciliation.milestones import Milestone
from relay.reconciliation.views import SentForm, ViewingHistory
from relay.video_service.api.records import Video


def watched(
    source: str, video: str, history: ViewingHistory, reached: Milestone, now_ms: int
) -> Event:
    """Return the `video.watched` of one milestone."""
    data = {
        "video": {"id": video, "title": history.title},
        "viewer": {"email": history.email, "name": history.name},
        "progress": PROGRESS[reached.name],
        "milestone": reached.name,
        "completed": reached.name == MILESTONES[-1],
    }
    return _event(source, VIDEO_WATCHED, data, at_ms=reached.at_ms, now_ms=now_ms)


def lead(source: str, form: SentForm, now_ms: int) -> Event:
    """Return the `lead.captured` of a form, as far as the form is known."""
    return _event(source, LEAD_CAPTURED, _lead(form), at_ms=form.at_ms, now_ms=now_ms)


def changed(source: str, change: LibraryChange, now_ms: int) -> Event:
    """Return the event of a video's change."""
    data = _DATA[change.kind](change.video)
    return _event(source, change.kind, data, at_ms=change.at_ms, now_ms=now_ms)


def _lead(form: SentForm) -> dict[str, Any]:
    submission = form.submission
    return {
        "id": submission.id,
        "email": submission.email,
        "name": submission.name,
        "fields": submission.fields or {},
        "video": {"id": form.video, "title": form.title},
        "createdAt": rfc3339(form.at_ms),
    }


def _created(video: Video) -> dict[str, Any]:
    return {"id": video.id, "title": video.title}


def _processed(video: Video) -> dict[str, Any]:
    return {
        "id": video.id,
        "title": video.title,
        "status": video.status,
        "version": video.version,
        "durationSeconds": video.duration_s,
        "width": video.width,
        "height": video.height,
        "errorMessage": video.error,
    }


def _deleted(video: Video) -> dict[str, Any]:
    return {"id": video.id, "title": video.title, "trashed": bool(video.trashed)}


_DATA = {
    "video.created": _created,
    "video.ready": _processed,
    "video.failed": _processed,
    "video.deleted": _deleted,
}


def _event(source: str, kind: str, data: Mapping[str, Any], *, at_ms: int, now_ms: int) -> Event:
    created_at = rfc3339(at_ms)
    id_ = reconstruction.ids(kind, {"createdAt": created_at, "data": data})[0]
    body = {
        "id": id_,
        "event": kind,
        "createdAt": created_at,
        "reconstructed": True,
        "data": data,
    }
    return Event(
        source=source,
        id=id_,
        kind=kind,
        created_at=created_at,
        received_ms=now_ms,
        body=orjson.dumps(body),
        reconstructed=True,
    )
