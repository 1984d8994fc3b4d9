"""One sink: its state, its attempts, its settings and its route."""

import shlex
from collections.abc import Sequence
from typing import Literal

import msgspec

from relay.admin.api.parameters import Text
from relay.admin.api.statistics import AttemptsOf, summarize_attempts
from relay.admin.api.status import show_status
from relay.admin.facts import SinkFacts, total_dead, without_backlog
from relay.admin.operation import Nothing
from relay.admin.page import charts
from relay.admin.page.live import EVERY_TOPIC
from relay.admin.page.text.settings import settings_of_sink
from relay.admin.page.view import PageView
from relay.admin.page.visit import Context, PageVisit
from relay.admin.verdict import sinks as verdict
from relay.core.minutes import DAY_MS, HOUR_MS
from relay.core.sink import SinkSettings
from relay.core.sink_status import REASON_WORDS, SinkStatus, about, outlook_of, rates, stands_still
from relay.core.units import duration
from relay.store.sink_states import StateSpan
from relay.store.statistics import DURATIONS_MS, AttemptSummary

WEEK_MS = 7 * DAY_MS

STATES_SHOWN = 12

SHOWN_MIN_MS = 1000
"""Shorter times without a state are rounding."""

_DURATIONS = [
    *(f"< {bound} ms" if bound < 1000 else f"< {bound // 1000} s" for bound in DURATIONS_MS),
    "longer",
]

OVER_MS = {"hour": HOUR_MS, "day": DAY_MS, "week": WEEK_MS}


class Strip(msgspec.Struct, frozen=True):
    """States over some time."""

    bars: Sequence[charts.Bar]
    text: str
    """The bars in words, such as `active 23 h 10 min, parked 50 min`."""
    from_ms: int
    middle_ms: int


def strip_of(spans: Sequence[StateSpan], length_ms: int, now_ms: int) -> Strip:
    """Lay out the states up to now."""
    from_ms = now_ms - length_ms
    known = [(each.state, each.from_ms, each.to_ms or now_ms) for each in spans]
    return Strip(
        charts.strip(known, from_ms, now_ms),
        described(spans, from_ms, now_ms),
        from_ms,
        from_ms + length_ms // 2,
    )


def described(spans: Sequence[StateSpan], from_ms: int, now_ms: int) -> str:
    """Say how long a sink was in each state."""
    lasted: dict[str, int] = {}
    for span in spans:
        span_ms = (span.to_ms or now_ms) - max(span.from_ms, from_ms)
        if span.state is not None and span_ms > 0:
            lasted[span.state] = lasted.get(span.state, 0) + span_ms
    unknown_ms = now_ms - from_ms - sum(lasted.values())
    if unknown_ms >= SHOWN_MIN_MS:
        lasted["unknown"] = unknown_ms
    return ", ".join(f"{state} {duration(ms)}" for state, ms in lasted.items())


class SinkPage(msgspec.Struct, frozen=True, kw_only=True):
    """One sink, and the time over which its attempts are summed up."""

    name: Text
    over: Literal["hour", "day", "week"] = "day"


class ResultRow(msgspec.Struct, frozen=True):
    """Attempts with one result; `share` is of all, up to 1."""

    result: str
    count: int
    share: float
    durations: Sequence[int]


async def read_sink(visit: PageVisit, page: SinkPage) -> Context:
    """Read the facts on a sink, which may be only in the store."""
    since_ms = visit.now_ms - OVER_MS[page.over]
    chosen = AttemptsOf(name=page.name, since_ms=since_ms)
    attempts = await visit.slow.get(page, lambda: visit.run(summarize_attempts, chosen))
    sinks = (await visit.run(show_status, Nothing())).sinks
    facts = next((each for each in sinks if each.name == page.name), without_backlog(page.name))
    spans = await visit.admin.store.sink_states.since(visit.now_ms - WEEK_MS)
    settings, status = settings_named(visit, page.name), facts.status()
    return {
        "name": page.name,
        "over": page.over,
        "facts": facts,
        "dead": total_dead(sinks),
        "status": status,
        "waits_for": REASON_WORDS[status.waits_for] if status.waits_for else None,
        "stands_still": stands_still(status.stands_still_since_ms, now_ms=visit.now_ms),
        **_flow(facts, now_ms=visit.now_ms),
        "findings": list(verdict.findings(facts, now_ms=visit.now_ms)),
        "route": settings,
        "settings": [] if settings is None else settings_of_sink(settings),
        "attempts": attempts,
        "results": _results(attempts),
        "durations": _DURATIONS,
        "commands": _commands(status),
        "sources": visit.admin.sources,
        **_states(spans.get(page.name, ()), visit.now_ms),
    }


def settings_named(visit: PageVisit, name: str) -> SinkSettings | None:
    """Return a sink's settings; None if it is not in the config."""
    return next((each for each in visit.admin.config().sinks if each.name == name), None)


def _flow(facts: SinkFacts, *, now_ms: int) -> Context:
    status = facts.status()
    flow, still_ms = status.flow, status.stands_still_since_ms
    wait_s = None if flow is None else flow.wait_s
    return {
        "rates": "" if flow is None else rates(flow),
        "outlook": outlook_of(status.state, still_ms, flow, pending=facts.pending, now_ms=now_ms),
        "wait": about(wait_s) if wait_s and status.state == "active" else "",
    }


def _results(attempts: AttemptSummary) -> list[ResultRow]:
    total = sum(each.count for each in attempts.results)
    return [
        ResultRow(each.result, each.count, each.count / total, each.durations)
        for each in attempts.results
    ]


def _states(spans: Sequence[StateSpan], now_ms: int) -> Context:
    """Lay out the states, and list the latest ones, newest first."""
    return {
        "day": strip_of(spans, DAY_MS, now_ms),
        "week": strip_of(spans, WEEK_MS, now_ms),
        "spans": spans[: -STATES_SHOWN - 1 : -1],
        "more_spans": len(spans) > STATES_SHOWN,
    }


def _commands(status: SinkStatus) -> list[str]:
    name = shlex.quote(status.name)
    if status.type is None:
        return [f"relay events list --sink {name} --outcome pending"]
    return [
        f"relay sinks test {name}",
        f"relay sinks {'resume' if status.state == 'paused' else 'pause'} {name}",
        f"relay sinks retry {name}",
        f"relay replay --sink {name} --outcome missed --dry-run",
    ]


ROUTE = PageView("/sinks/{name}", read_sink, "Sink", "sink.html", topics=EVERY_TOPIC)
