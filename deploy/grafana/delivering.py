"""The part of the relay's dashboard about its sinks: what went out, and what waits."""

from collections.abc import Iterator

from grafana_foundation_sdk.builders import heatmap, statetimeline, timeseries

from deploy.grafana import asking, looks, panels
from deploy.grafana.queries import came, of_sink, quantile, rate, total

STATES = {
    0: ("active", looks.GOOD),
    1: ("paused", looks.GREY),
    2: ("throttled", looks.DOUBTFUL),
    3: ("parked", looks.BAD),
}
"""From the best to the worst: what someone wanted, what mends itself, what waits for someone."""
LAGS = of_sink("relay_delivery_lag_seconds_bucket")
OLDEST = of_sink("relay_oldest_pending_timestamp_seconds")
OLDEST_AGE = f"(time() - {OLDEST}) * ({OLDEST} > bool 0)"
"""0 where nothing is pending."""


def _worst_state() -> str:
    """Give each sink the number of the worst state that it is in at any relay."""
    numbered = (
        f"{place} * {of_sink('relay_sink_state', _is(name))}" for place, (name, _) in STATES.items()
    )
    return f"max by (sink) ({' or '.join(numbered)})"


def _is(state: str) -> str:
    return f'state="{state}"'


def state() -> statetimeline.Panel:
    return (
        panels.states(
            "State of the sinks",
            "active: all is well. throttled: it fails or asked for a pause, and one send at a time"
            " probes it. parked: it takes nothing until someone acts (a wrong URL, a revoked key)."
            " paused: by an operator. Nothing is lost in any of them; the backlog waits. Of several"
            " relays the worst state is shown: parked, then throttled, then paused.",
            STATES,
            asking.series(_worst_state(), "{{sink}}"),
        )
        .span(24)
        .height(6)
    )


def backlog() -> Iterator[timeseries.Panel]:
    yield (
        panels.levels(
            "Waiting",
            "Deliveries that are still to be made.",
            "locale",
            asking.series(f"sum by (sink) ({of_sink('relay_pending_deliveries')})", "{{sink}}"),
        )
        .decimals(0)
        .span(8)
        .height(8)
    )
    yield (
        panels.levels(
            "Age of the oldest that waits",
            "How long the oldest undelivered event has been waiting; 0 when nothing waits. This,"
            " not the number, says how late a sink is. In hours, minutes and seconds.",
            "dthms",
            asking.series(f"max by (sink) ({OLDEST_AGE})", "{{sink}}"),
        )
        .span(8)
        .height(8)
    )
    yield (
        panels.levels(
            "Dead letters",
            "Deliveries that were given up. They wait for a decision: relay dead-letters list, then"
            " replay or discard.",
            "locale",
            asking.series(f"sum by (sink) ({of_sink('relay_dead_letters')})", "{{sink}}"),
        )
        .decimals(0)
        .span(8)
        .height(8)
    )


def deliveries() -> Iterator[timeseries.Panel | heatmap.Panel]:
    yield (
        panels.bars(
            "Deliveries that ended",
            (
                "By how they ended: delivered, or dead, which is given up; also dead, because the"
                " stored body is damaged."
            ),
            "locale",
            asking.series(
                came(of_sink("relay_deliveries_total"), "sink", "outcome"),
                "{{sink}}: {{outcome}}",
            ),
            asking.series(
                came(of_sink("relay_damaged_bodies_total"), "sink"), "{{sink}}: damaged body"
            ),
        )
        .override_by_regexp(".*(dead|damaged body)", looks.painted(looks.BAD))
        .no_value("nothing was delivered")
        .span(8)
        .height(8)
    )
    yield (
        panels.bars(
            "Tries by result",
            "Over the chosen sinks. retry: it failed and will be tried again. parked:"
            " the sink itself is at fault. dead: this event is refused for good.",
            "locale",
            asking.series(came(of_sink("relay_attempts_total"), "result"), "{{result}}"),
        )
        .override_by_name("delivered", looks.painted(looks.GOOD))
        .override_by_name("retry", looks.painted(looks.DOUBTFUL))
        .override_by_name("parked", looks.painted(looks.PURPLE))
        .override_by_name("dead", looks.painted(looks.BAD))
        .no_value("nothing was tried")
        .span(8)
        .height(8)
    )
    yield (
        panels.durations(
            "How long a try takes",
            "95 of 100 tries are faster than this; it is the far end's time, and the network's.",
            asking.series(
                quantile(0.95, of_sink("relay_attempt_seconds_bucket"), "sink"), "{{sink}}"
            ),
        )
        .span(8)
        .height(8)
    )
    yield (
        panels.durations(
            "From receipt to delivery",
            "95 of 100 events reach the sink within this time after they came, with all tries and"
            " pauses.",
            asking.series(quantile(0.95, LAGS, "sink"), "{{sink}}"),
        )
        .span(12)
        .height(8)
    )
    yield (
        panels.heat(
            "From receipt to delivery, all events",
            "How many deliveries took how long, over the chosen sinks.",
            "s",
            asking.buckets(total(rate(LAGS), "le")),
        )
        .span(12)
        .height(8)
    )
