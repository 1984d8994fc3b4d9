"""Figures of the traffic: by minute, of a sink's attempts, and of acknowledgements."""

from collections.abc import Sequence

import msgspec
from starlette.exceptions import HTTPException

from relay.admin.api.parameters import Number, require_known
from relay.admin.operation import Nothing, Operation
from relay.admin.services import AdminServices
from relay.core.errors import StoreError
from relay.core.minutes import DAY_MS, HOUR_MS, Minute
from relay.store.statistics import AttemptSummary
from relay.telemetry.ack_times import AckQuantiles

SPAN_MAX_MS = DAY_MS


class TimeQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Some time, at most a day; by default the last hour."""

    since_ms: Number | None = None
    until_ms: Number | None = None
    """Exclusive; by default now."""


class Minutes(msgspec.Struct, frozen=True, kw_only=True):
    """Every minute of the time, oldest first."""

    minutes: Sequence[Minute]


class AttemptsOf(msgspec.Struct, frozen=True, kw_only=True):
    """A sink, and a time; by default the last hour."""

    name: str
    since_ms: Number | None = None


class AcceptanceRate(AckQuantiles, frozen=True, kw_only=True):
    """The rate of new events at all relays of the store, with the time of the last one."""

    last_minute: int | None
    """New events in the last minute; None if the store cannot be read."""
    last_ms: int | None
    """Receipt of the last new event, also of an earlier process; None before the first."""


async def count_minutes(admin: AdminServices, span: TimeQuery) -> Minutes:
    """New events and attempts by minute; null where a count is not known."""
    now_ms = admin.clock.now_ms()
    until_ms = now_ms + 1 if span.until_ms is None else span.until_ms
    since_ms = until_ms - HOUR_MS if span.since_ms is None else span.since_ms
    if not 0 <= until_ms - since_ms <= SPAN_MAX_MS:
        raise HTTPException(422, "The time is over a day, or ends before it begins.")
    return Minutes(minutes=await admin.store.statistics.minutes(since_ms, until_ms))


async def summarize_attempts(admin: AdminServices, query: AttemptsOf) -> AttemptSummary:
    """The attempts of one sink, counted by result, duration and reason."""
    sinks = [route.sink for route in admin.routes]
    await require_known("sink", query.name, sinks, admin.store.events.sinks)
    since_ms = admin.clock.now_ms() - HOUR_MS if query.since_ms is None else query.since_ms
    return await admin.store.statistics.attempts(query.name, since_ms)


async def show_acceptance(admin: AdminServices, _: Nothing) -> AcceptanceRate:
    """The rate of new events, and the durations of acknowledgements."""
    quantiles = admin.ack_times.quantiles()
    last_ms = [
        at_ms for source in admin.sources for at_ms in admin.metrics.last_events_ms(source).values()
    ]
    return AcceptanceRate(
        last_minute=await _last_minute(admin),
        last_ms=max(last_ms, default=None),
        median_s=quantiles.median_s,
        p99_s=quantiles.p99_s,
    )


async def _last_minute(admin: AdminServices) -> int | None:
    try:
        return await admin.store.statistics.last_minute()
    except StoreError:
        return None


OPERATIONS = (
    Operation(
        "GET",
        "/api/v1/statistics/minutes",
        count_minutes,
        {422: "The time is over a day, or ends before it begins."},
    ),
    Operation("GET", "/api/v1/statistics/acceptance", show_acceptance),
    Operation(
        "GET",
        "/api/v1/sinks/{name}/attempts",
        summarize_attempts,
        {404: "There is no such sink."},
    ),
)
