"""Audited changes in words: the change, its result, its author and its origin."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from relay.admin.page.text.formats import utc
from relay.admin.page.visit import PERSONAL_FIELDS, PageVisit
from relay.core.units import number
from relay.store.audit import ChangeRecord

State = Literal["done", "refused", "failed", "running", "cut off"]

DONE = 200
FAILED_MIN = 500
"""HTTP statuses of changes; those in between were refused."""


class Wording(msgspec.Struct, frozen=True):
    """An operation in words: its verb in the past and for a change that was not made."""

    past: str
    plain: str
    object: str = ""
    """The rest of the sentence; `{}` stands for the target."""
    count: str = ""
    """The number in the result that says how many."""
    one: str = ""
    many: str = ""
    """The unit of the count, in the singular and in the plural."""

    def described(self, target: str = "", *, is_done: bool = False) -> str:
        """Return the sentence."""
        verb = self.past if is_done else self.plain
        return f"{verb} {self.object}".format(target).rstrip()


_DELIVERIES = ("delivery", "deliveries")
_EVENTS = ("event", "events")
_REQUESTS = ("request", "requests")
_LETTERS = ("discarded", "dead letter", "dead letters")
_VERIFIED = ("verified", "kept request verified", "kept requests verified")
_SOURCES = ("reconciliations", "source", "sources")

OPERATIONS: Mapping[str, Wording] = {
    "pause_sink": Wording("Paused", "Pause", "{}"),
    "resume_sink": Wording("Resumed", "Resume", "{}"),
    "retry_sink": Wording("Retried", "Retry", "{} at once", "brought_forward", *_DELIVERIES),
    "send_sample": Wording("Tried", "Try", "a sample on {}"),
    "begin_replay": Wording("Started", "Start", "a replay", "total", *_DELIVERIES),
    "cancel_replay": Wording("Cancelled", "Cancel", "replay {}", "opened", *_DELIVERIES),
    "discard_dead_letters": Wording("Discarded", "Discard", "dead letters", *_LETTERS),
    "discard_delivery": Wording("Discarded", "Discard", "a delivery to {}"),
    "discard_unreadable": Wording("Discarded", "Discard", "unreadable request {}"),
    "discard_unreadable_requests": Wording(
        "Discarded", "Discard", "unreadable requests", "discarded", *_REQUESTS
    ),
    "retry_unreadable": Wording("Retried", "Retry", "unreadable request {}", "accepted", *_EVENTS),
    "retry_unreadable_requests": Wording(
        "Retried", "Retry", "unreadable requests", "accepted", *_EVENTS
    ),
    "erase_person": Wording("Erased", "Erase", "a person's data", "events", *_EVENTS),
    "export_person": Wording("Exported", "Export", "a person's data", "events", *_EVENTS),
    "backup_store": Wording("Copied", "Copy", "the whole store"),
    "reload_config": Wording("Reloaded", "Reload", "the config"),
    "begin_rotation": Wording("Began", "Begin", "to rotate the secret of {}"),
    "finish_rotation": Wording("Finished", "Finish", "rotating the secret of {}", *_VERIFIED),
    "note_endpoint": Wording("Noted", "Note", "a change of the webhook endpoint of {}"),
    "begin_reconciliation": Wording("Asked", "Ask", "what an outage cost", *_SOURCES),
    "cancel_reconciliation": Wording("Cancelled", "Cancel", "reconciliation {}"),
    "acknowledge_absence": Wording("Acknowledged", "Acknowledge", "absence {}"),
}
"""Every audited operation."""

_COUNTED = Wording("Counted", "Count", "dead letters to discard", "discarded")

_DIGEST = re.compile("person:[0-9a-f]+")


class ChangeRow(msgspec.Struct, frozen=True, kw_only=True):
    """One change for the table, without personal data for viewers."""

    id: int
    begun_ms: int
    text: str
    target: str
    state: State
    took_ms: int | None
    status: int | None
    count: int | None
    unit: str
    details: Sequence[tuple[str, str]]
    """Values of the request and of the result, by name."""
    by: str
    via: str
    address: str | None


def change_row(visit: PageVisit, change: ChangeRecord) -> ChangeRow:
    """Describe a change to a visitor."""
    state = state_of(visit, change)
    wording = _wording(change)
    count = change.result.get(wording.count) if state == "done" else None
    return ChangeRow(
        id=change.id,
        begun_ms=change.begun_ms,
        text=described(visit, change),
        target=_text(visit, change.target),
        state=state,
        took_ms=None if change.ended_ms is None else max(0, change.ended_ms - change.begun_ms),
        status=change.status,
        count=count if isinstance(count, int) else None,
        unit=wording.one if count == 1 else wording.many,
        details=[*_asked(visit, change), *_result(wording, change)],
        by="the relay itself" if change.actor is None else f"{change.actor} token",
        via=_via(visit, change.via),
        address=change.address if visit.may_change else None,
    )


def described(visit: PageVisit, change: ChangeRecord) -> str:
    """Describe the change in one line: in the past tense only if it was made."""
    is_done = state_of(visit, change) == "done"
    return _wording(change).described(_text(visit, change.target), is_done=is_done)


def state_of(visit: PageVisit, change: ChangeRecord) -> State:
    """Return how a change ended; one of an earlier process does not run any more."""
    if change.ended_ms is None or change.status is None:
        # If the clock was set since the start, the change may have begun before that or after.
        started_ms = min(visit.admin.started.first_ms, visit.admin.started.ms)
        return "running" if change.begun_ms >= started_ms else "cut off"
    if change.status == DONE:
        return "done"
    return "failed" if change.status >= FAILED_MIN else "refused"


def _wording(change: ChangeRecord) -> Wording:
    if change.operation == "discard_dead_letters" and change.asked.get("dry_run"):
        return _COUNTED
    name = change.operation.replace("_", " ").capitalize()
    # A newer relay may have written the row.
    return OPERATIONS.get(change.operation, Wording(name, name, "{}"))


def _asked(visit: PageVisit, change: ChangeRecord) -> Iterator[tuple[str, str]]:
    for name, value in change.asked.items():
        if name in PERSONAL_FIELDS and not visit.may_change:
            yield _label(name), "hidden"
        elif name == "dry_run":
            continue
        elif name == "duration_ms" and isinstance(value, int):
            yield "for", f"{value // 60_000} min" if value >= 60_000 else f"{value // 1000} s"
        elif name.endswith("_ms") and isinstance(value, int):
            yield _label(name.removesuffix("_ms")), utc(value)
        elif value is True:
            yield _label(name), "yes"
        else:
            yield _label(name), _text(visit, _joined(value))


def _result(wording: Wording, change: ChangeRecord) -> Iterator[tuple[str, str]]:
    """Yield the numbers beside the count that are not zero, without ids and backlogs."""
    for name, value in change.result.items():
        if change.operation == "reload_config":
            if value:
                yield name, _joined(value)
        elif name == "wiped":
            # An erasure is complete only once no unused part of a file holds the data any more.
            yield "removed data", "overwritten" if value else "not overwritten yet"
        elif wording.count and value and name not in (wording.count, "id", "pending", "dead"):
            yield _label(name), number(value) if isinstance(value, int) else _joined(value)


def _text(visit: PageVisit, text: str | None) -> str:
    """Hide persons from viewers; a row holds no address, but its digests tell persons apart."""
    shown = visit.text(text)
    return shown if visit.may_change else _DIGEST.sub("(person hidden)", shown)


def _label(name: str) -> str:
    return name.replace("_", " ")


def _joined(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _via(visit: PageVisit, via: str | None) -> str:
    if via is None:
        return "unknown program"
    if via == "page":
        return "this page"
    if via.startswith("relay/"):
        return "relay command"
    return _text(visit, via)
