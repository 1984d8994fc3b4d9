"""Ids of reconstructed events: digests of the facts that the events state.

An original states the same facts, so that it finds its reconstruction. Two relays, and two runs of
one relay, give the same id to the same fact. An erasure replaces an id, because an address may be
part of the digest.
"""

import hashlib
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import orjson

from relay.core.event import LEAD_CAPTURED, VIDEO_WATCHED, engagement

PREFIX = "reconstructed-"
_DIGITS = 32

CREATED, TRASHED, DELETED = "created", "trashed", "deleted"

CLOCKS_MS = 300_000
"""Difference of clocks that is allowed for (video-service.md, section 6)."""


def ids(kind: str, document: dict[str, Any]) -> tuple[str, ...]:
    """Return the ids under which an event may have been reconstructed, the best one first.

    Empty for an event that is never reconstructed.
    """
    return tuple(_id(kind, *fact) for fact in _facts(kind, document))


def occurred_ms(document: dict[str, Any]) -> int | None:
    """Return the time of `createdAt`; None if it is not a time with a zone."""
    return _ms(document.get("createdAt"))


def change_of(kind: str, document: dict[str, Any]) -> str | None:
    """Return what an event says of a video beside its views, such as `ready 2` or `trashed`."""
    data = document.get("data")
    if not isinstance(data, dict):
        return None
    match kind:
        case "video.created":
            return CREATED
        case "video.ready" | "video.failed":
            return processed(kind, data.get("version"))
        case "video.deleted":
            return TRASHED if data.get("trashed") else DELETED
    return None


def processed(kind: str, version: object) -> str:
    """Return the change that a version's processing makes, `ready 2` or `failed 1`."""
    number = version if isinstance(version, int) and not isinstance(version, bool) else 0
    return f"{kind.removeprefix('video.')} {number}"


def _facts(kind: str, document: dict[str, Any]) -> Iterator[tuple[object, ...]]:
    data = document.get("data")
    if not isinstance(data, dict):
        return
    step, video, _, person = engagement(kind, document)
    match kind:
        case _ if kind == VIDEO_WATCHED:
            if step and video and person:
                yield video, person, step
        case _ if kind == LEAD_CAPTURED:
            if isinstance(data.get("id"), str):
                yield ("id", data["id"])
            submitted_ms = _ms(data.get("createdAt"))
            if person and submitted_ms is not None:
                yield ("form", video, person, submitted_ms)
        case "video.created" if video:
            yield (video,)
        case "video.ready" | "video.failed" if video:
            yield video, data.get("version")
        case "video.deleted" if video:
            yield from ((video, *removal) for removal in _removals(data, occurred_ms(document)))


def _removals(data: dict[str, Any], at_ms: int | None) -> Iterator[tuple[object, ...]]:
    if not data.get("trashed") or at_ms is None:
        yield (data.get("trashed"),)
        return
    # A restored video may be moved to Trash again; two clocks may differ about one move.
    span = at_ms // CLOCKS_MS
    for near in (span, span - 1, span + 1):
        yield True, near


def _id(kind: str, *fact: object) -> str:
    text = orjson.dumps([kind, *fact], default=str)
    return PREFIX + hashlib.sha256(text).hexdigest()[:_DIGITS]


def _ms(text: object) -> int | None:
    if not isinstance(text, str):
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return round(moment.timestamp() * 1000) if moment.tzinfo else None
