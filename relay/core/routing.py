"""Selects the sinks for an event, with a reason for each decision."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import translate
from typing import Literal

import msgspec

from relay.core import expressions
from relay.core.event import WEBHOOK_TEST, Event

Ordered = Literal["video", "viewer"]

_KEYS: Mapping[Ordered, Callable[[Event], str | None]] = {
    "video": Event.video_id,
    "viewer": Event.person,
}


class Verdict(msgspec.Struct, frozen=True):
    """A route's decision on an event; `why` is a text for the operator.

    If the rule fails on an event, the delivery becomes a dead letter.
    """

    sink: str
    outcome: Literal["takes", "declines", "fails"]
    why: str
    key: str | None = None
    """Ordering key: its events are sent one after another. May be an address, so never shown."""


class Route:
    """One sink's `events`, `sources`, `when`, `ordered` and `reconstructed`, compiled."""

    def __init__(
        self,
        sink: str,
        *,
        events: Sequence[str] = ("*",),
        sources: Sequence[str] | None = None,
        when: str | None = None,
        ordered: Ordered | None = None,
        reconstructed: bool = False,
    ) -> None:
        """Compile the rule; raises InvalidRule if `when` is not a JMESPath expression."""
        self.sink = sink
        self._globs = tuple(events)
        self._kinds = re.compile("|".join(translate(glob) for glob in events))
        self._sources = None if sources is None else frozenset(sources)
        self._when = when
        self._rule = None if when is None else expressions.Expression(when)
        self._ordered = ordered
        self._reconstructed = reconstructed
        self._yes = Verdict(sink, "takes", "events and sources match")

    def evaluate(self, event: Event) -> Verdict:
        """Decide whether the sink takes the event."""
        if self._sources is not None and event.source not in self._sources:
            return self._no(f"source {event.source} is not in sources")
        if event.reconstructed and not self._reconstructed:
            return self._no("reconstructed events go only to sinks with reconstructed = true")
        if event.kind == WEBHOOK_TEST and WEBHOOK_TEST not in self._globs:
            return self._no(f"{WEBHOOK_TEST} goes only to sinks that name it in events")
        if self._kinds.fullmatch(event.kind) is None:
            return self._no(f"{event.kind} matches nothing in events")
        if self._rule is None:
            return self._yes if self._ordered is None else self._take(event, self._yes.why)
        return self._apply(self._rule, event)

    def _apply(self, rule: expressions.Expression, event: Event) -> Verdict:
        try:
            is_true = rule.is_true(event.document())
        except expressions.FAILURES as error:
            return Verdict(self.sink, "fails", f"when failed: {type(error).__name__}")
        if is_true:
            return self._take(event, f"when is true: {self._when}")
        return self._no(f"when is false: {self._when}")

    def _take(self, event: Event, why: str) -> Verdict:
        return Verdict(self.sink, "takes", why, self._key(event))

    def _key(self, event: Event) -> str | None:
        """Return the ordering key; None if the sink is unordered or the event has no such value."""
        value = None if self._ordered is None else _KEYS[self._ordered](event)
        # The prefix keeps keys apart across a change of `ordered`.
        return None if value is None else f"{self._ordered} {value}"

    def _no(self, why: str) -> Verdict:
        return Verdict(self.sink, "declines", why)


def match(event: Event, routes: Iterable[Route]) -> tuple[Verdict, ...]:
    """Return the verdicts that become deliveries: the sink takes it, or its rule failed on it."""
    verdicts = (route.evaluate(event) for route in routes)
    return tuple(verdict for verdict in verdicts if verdict.outcome != "declines")
