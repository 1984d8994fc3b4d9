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
from relay.admin.page.text.settings import settings_of_sink
from relay.admin.page.view import View
from relay.admin.page.views.sinks.states import WEEK_MS, strip_of
from relay.admin.page.visit import Context, Visit
from relay.admin.verdict import sinks as verdict
from relay.core.flow import about, rates
from relay.core.minutes import DAY_MS, HOUR_MS
from relay.core.sink import SinkSettings
from relay.core.sink_status import REASON_WORDS, SinkStatus, outlook_of, stands_still
from relay.store.sink_states import StateSpan
from relay.store.statistics import DURATIONS_MS, AttemptSummary

STATES_SHOWN = 12

_DURATIONS = [
    *(f"< {bound} ms" if bound < 1000 else f"< {bound // 1000} s" for bound in DURATIONS_MS),
    "longer",
]

OVER_MS = {"hour": HOUR_MS, "day": DAY_MS, "week": WEEK_MS}


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


async def read_sink(visit: Visit, page: SinkPage) -> Context:
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
        "sources": visit.admin.rotations.sources,
        **_states(spans.get(page.name, ()), visit.now_ms),
    }


def settings_named(visit: Visit, name: str) -> SinkSettings | None:
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


VIEW = View(
    path="/sinks/{name}",
    title="Sink",
    template="sink.html",
    read=read_sink,
    topics=("events", "deliveries", "sinks", "config", "changes"),
)
