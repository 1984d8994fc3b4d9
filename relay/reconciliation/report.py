"""The report of a reconciliation: numbers, names, and the words for them."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec
from msgspec.structs import asdict, replace

from relay.core.event import (
    LEAD_CAPTURED,
    MILESTONES,
    SUBSCRIBABLE,
    VIDEO_WATCHED,
    Event,
    engagement,
)
from relay.core.units import number
from relay.reconciliation.reasons import WORDS, Reason
from relay.store.reconstructions import FactOutcome, NamedFact, ReconstructionOutcome

NAMED_MAX = 1000
"""Facts that a report names; the others are counted."""


class About(msgspec.Struct, frozen=True):
    """Whom and what a fact is about that could not be given back."""

    kind: str
    person: str | None = None
    video: str | None = None
    title: str | None = None
    lead: str | None = None


class RunReport(msgspec.Struct, kw_only=True):
    """What one run found; for a dry run, what it would have made."""

    views: int = 0
    """Views that the API listed."""
    videos: int = 0
    """Videos that the API listed."""
    people_asked: int = 0
    """Persons of whom the API was asked what they watched."""
    events: dict[str, int] = {}
    """Reconstructed events by kind."""
    milestones: dict[str, int] = {}
    """Reconstructed `video.watched` by milestone."""
    known: int = 0
    """Events that were reconstructed before."""
    arrived: int = 0
    """Events whose original arrived during the run."""
    erased: int = 0
    """Events and views that were refused, because they are about erased persons."""
    leads_without_fields: int = 0
    """Reconstructed leads of which the API does not say the fields."""
    unknown: dict[str, int] = {}
    """Facts that cannot be known, by reason."""
    left: dict[str, int] = {}
    """Facts that the next run may find, by reason."""
    unsubscribed: list[str] = []
    """Kinds that were left out, because the endpoint does not receive them."""
    unrequested: list[str] = []
    """Kinds that the endpoint receives, and the order left out."""
    subscription_unknown: str | None = None
    """Why it is not known what the endpoint receives, so that nothing was left out for it."""
    named: list[NamedFact] = []
    """The first facts that were given back, or could not be, with people's addresses."""
    failed: str | None = None
    """Why the run ended early."""

    def choose(
        self, received: Collection[str], unknown: str | None, *, requested: Collection[str]
    ) -> Collection[str]:
        """Return the kinds that are given back, and note those that are left out.

        `received` are those that the endpoint receives, all of them if that is `unknown`;
        `requested` narrows them if it has any.
        """
        self.subscription_unknown = unknown
        self.unsubscribed = [kind for kind in SUBSCRIBABLE if kind not in received]
        chosen = [kind for kind in SUBSCRIBABLE if kind in received]
        if requested:
            self.unrequested = [kind for kind in chosen if kind not in requested]
        return frozenset(chosen) - frozenset(self.unrequested)

    def note(self, event: Event, outcome: ReconstructionOutcome) -> None:
        """Count the outcome of one reconstruction."""
        match outcome:
            case "accepted":
                _add(self.events, event.kind)
                if event.kind == VIDEO_WATCHED:
                    _add(self.milestones, str(event.milestone()))
                self._name(_fact(event))
            case "known":
                self.known += 1
            case "arrived":
                self.arrived += 1
            case "erased":
                self.erased += 1

    def cannot_know(self, *reasons: Reason, count: int = 1, about: About | None = None) -> None:
        for reason in reasons:
            _add(self.unknown, reason, count)
            self._doubt("unknown", reason, about)

    def leave(self, *reasons: Reason, about: About) -> None:
        for reason in reasons:
            _add(self.left, reason)
            self._doubt("left", reason, about)

    def forget(self, people: Collection[str]) -> None:
        """Name none of these people."""
        self.named = [fact for fact in self.named if fact.person not in people]

    def _doubt(self, outcome: FactOutcome, reason: Reason, about: About | None) -> None:
        if about is not None:
            self._name(NamedFact(outcome=outcome, why=reason, **asdict(about)))

    def _name(self, fact: NamedFact) -> None:
        if len(self.named) < NAMED_MAX:
            self.named.append(fact)

    @classmethod
    def read(cls, numbers: Mapping[str, Any]) -> "RunReport":
        """Return the report of a stored run."""
        return msgspec.convert(numbers, cls)

    def values(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        values: dict[str, Any] = msgspec.to_builtins(self)
        return values


def _fact(event: Event) -> NamedFact:
    document = event.document()
    step, video, title, person = engagement(event.kind, document)
    data = document["data"]
    return NamedFact(
        outcome="reconstructed",
        kind=event.kind,
        person=person,
        video=video,
        title=title,
        lead=data["id"] if event.kind == LEAD_CAPTURED else None,
        milestone=step if event.kind == VIDEO_WATCHED else None,
        event=event.id,
    )


def _add(counts: dict[str, int], name: str, count: int = 1) -> None:
    if count:
        counts[name] = counts.get(name, 0) + count


def words(report: RunReport, *, dry_run: bool) -> list[str]:
    """Return the report as sentences for the operator, without an address."""
    failure = [] if report.failed is None else [f"ended early: {report.failed}"]
    made = _reconstructed(report, dry_run=dry_run)
    return [*failure, *made, *_left_out(report), *_rest(report)]


def _reconstructed(report: RunReport, *, dry_run: bool) -> Iterable[str]:
    verb = "would be reconstructed" if dry_run else "reconstructed"
    total = sum(report.events.values())
    yield f"{_count(total, 'event')} {verb}" + _parts(report.events)
    if report.milestones:
        counts = {name: report.milestones.get(name) for name in MILESTONES}
        parts = ", ".join(f"{number(count)} at {name}" for name, count in counts.items() if count)
        yield f"of video.watched: {parts}"
    if report.leads_without_fields:
        yield f"{_count(report.leads_without_fields, 'lead')} without fields: the API has none"
    if report.known:
        yield f"{_count(report.known, 'event')} had been reconstructed before"
    if report.arrived:
        yield f"{_count(report.arrived, 'original')} arrived meanwhile"
    if report.erased:
        yield f"{number(report.erased)} refused, because they are about erased persons"


def _left_out(report: RunReport) -> Iterable[str]:
    for kinds, why in (
        (report.unsubscribed, "the endpoint does not receive them"),
        (report.unrequested, "they were not asked for"),
    ):
        if kinds:
            yield f"left out, because {why}: {', '.join(kinds)}"
    if report.subscription_unknown is not None:
        why = f"what the endpoint receives is not known ({report.subscription_unknown})"
        yield f"no kind was left out, because {why}; --events names the kinds"


def _rest(report: RunReport) -> Iterable[str]:
    for reason, count in sorted(report.unknown.items()):
        yield f"cannot be known: {_words(reason)} ({number(count)})"
    for reason, count in sorted(report.left.items()):
        yield f"left for the next run: {_words(reason)} ({number(count)})"


def explained(fact: NamedFact) -> NamedFact:
    """Return a fact with its reason in words."""
    return fact if fact.why is None else replace(fact, why=_words(fact.why))


def _words(reason: str) -> str:
    return next((text for name, text in WORDS.items() if name == reason), reason)


def _parts(counts: Mapping[str, int]) -> str:
    parts = ", ".join(f"{number(count)} {name}" for name, count in sorted(counts.items()))
    return f": {parts}" if parts else ""


def _count(count: int, noun: str) -> str:
    return f"{number(count)} {noun}{'' if count == 1 else 's'}"
