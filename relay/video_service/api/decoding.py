"""Turns the objects of the API's answers into records."""

from collections.abc import Iterator

from relay.core.config_values import Secret
from relay.video_service.api.errors import ServiceApiError
from relay.video_service.api.fields import Document, Fields
from relay.video_service.api.records import (
    Registration,
    Session,
    SessionPage,
    Submission,
    Video,
    Watched,
    Webhook,
    WebhookAttempt,
)


def next_page(document: Document, fields: Fields) -> str | None:
    return fields.text(document, "next")


def videos(document: Document, fields: Fields) -> Iterator[Video]:
    """Yield the videos of a list, without those that have no id."""
    for item in _items(document, fields, "videos"):
        video_id = fields.text(item, "video.id")
        if video_id is None:
            fields.skipped += 1
        else:
            yield _video(item, video_id, fields)


def _video(item: Document, video_id: str, fields: Fields) -> Video:
    return Video(
        id=video_id,
        title=fields.text(item, "video.title"),
        status=fields.text(item, "video.status"),
        version=fields.whole(item, "video.version"),
        duration_s=fields.number(item, "video.duration"),
        width=fields.whole(item, "video.width"),
        height=fields.whole(item, "video.height"),
        error=fields.text(item, "video.error"),
        trashed=fields.truth(item, "video.trashed"),
        created_ms=fields.moment(item, "video.created"),
        updated_ms=fields.moment(item, "video.updated"),
    )


def session_page(document: Document, fields: Fields) -> SessionPage:
    sessions = tuple(_session(item, fields) for item in _items(document, fields, "sessions"))
    return SessionPage(sessions=sessions, next=next_page(document, fields))


def _session(item: Document, fields: Fields) -> Session:
    video = fields.part(item, "session.video")
    viewer = fields.part(item, "session.viewer")
    return Session(
        id=fields.text(item, "session.id"),
        video_id=fields.text(video, "video.id"),
        title=fields.text(video, "video.title"),
        email=fields.text(viewer, "viewer.email"),
        name=fields.text(viewer, "viewer.name"),
        started_ms=fields.moment(item, "session.started"),
        ended_ms=fields.moment(item, "session.ended"),
        percent=fields.number(item, "session.percent"),
        finished=fields.truth(item, "session.finished"),
        submitted=tuple(
            _submission(lead, fields) for lead in fields.items(item, "session.submitted")
        ),
    )


def _submission(item: Document, fields: Fields) -> Submission:
    return Submission(
        id=fields.text(item, "lead.id"),
        email=fields.text(item, "lead.email"),
        name=fields.text(item, "lead.name"),
        fields=fields.table(item, "lead.fields"),
        created_ms=fields.moment(item, "lead.created"),
    )


def watched(document: Document, fields: Fields) -> Iterator[Watched]:
    """Yield the videos that a person watched, without those that have no id."""
    for item in _items(document, fields, "watched"):
        video = fields.part(item, "watched.video")
        video_id = fields.text(video, "video.id")
        if video_id is None:
            fields.skipped += 1
            continue
        yield Watched(
            video_id=video_id,
            title=fields.text(video, "video.title"),
            percent=fields.number(item, "watched.percent"),
            finished=fields.truth(item, "watched.finished"),
            first_ms=fields.moment(item, "watched.first"),
            last_ms=fields.moment(item, "watched.last"),
        )


def webhooks(document: Document, fields: Fields) -> Iterator[Webhook]:
    """Yield the webhook endpoints of a list, without those that have no id."""
    for item in _items(document, fields, "webhooks"):
        endpoint = _webhook(item, fields)
        if endpoint is None:
            fields.skipped += 1
        else:
            yield endpoint


def webhook(document: Document, fields: Fields) -> Webhook:
    """Return the webhook endpoint of an answer; raises ServiceApiError without its id."""
    endpoint = _inner_webhook(document, fields)
    if endpoint is None:
        raise ServiceApiError("broken answer", uncertain=True)
    return endpoint


def changed_webhook(document: Document, fields: Fields, *, endpoint: str) -> Webhook:
    """Return the endpoint after a change, as far as the answer shows it."""
    return _inner_webhook(document, fields) or Webhook(id=endpoint)


def registration(document: Document, fields: Fields) -> Registration:
    """Return the new endpoint; raises ServiceApiError without its secret."""
    return Registration(webhook=_inner_webhook(document, fields), secret=secret(document, fields))


def secret(document: Document, fields: Fields) -> Secret:
    """Return the signing secret of an answer; raises ServiceApiError without one."""
    text = fields.text(document, "webhook.secret")
    if text is None:
        text = fields.text(fields.part(document, "webhook"), "webhook.secret")
    if text is None or not text.strip():
        raise ServiceApiError("broken answer", uncertain=True)
    return Secret(text)


def _inner_webhook(document: Document, fields: Fields) -> Webhook | None:
    return _webhook(fields.table(document, "webhook") or document, fields)


def _webhook(item: Document, fields: Fields) -> Webhook | None:
    endpoint_id = fields.text(item, "webhook.id")
    if endpoint_id is None:
        return None
    return Webhook(
        id=endpoint_id,
        url=fields.text(item, "webhook.url"),
        events=fields.texts(item, "webhook.events"),
    )


def attempts(document: Document, fields: Fields) -> Iterator[WebhookAttempt]:
    for item in _items(document, fields, "deliveries"):
        yield WebhookAttempt(
            event=fields.text(item, "delivery.event"),
            event_id=fields.text(item, "delivery.event_id"),
            number=fields.whole(item, "delivery.attempt"),
            state=fields.text(item, "delivery.state"),
            status=fields.whole(item, "delivery.status"),
            response=fields.text(item, "delivery.response"),
            started_ms=fields.moment(item, "delivery.time"),
        )


def _items(document: Document, fields: Fields, key: str) -> Iterator[Document]:
    """Yield a list's objects; raises ServiceApiError without the list, which is no empty one."""
    if not isinstance(fields.raw(document, key), list):
        raise ServiceApiError("broken answer")
    return fields.items(document, key)
