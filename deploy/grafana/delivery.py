"""Panels about the sinks: backlog and deliveries."""

from deploy.grafana.layout import line, row
from deploy.grafana.panels import bars, durations, heat, levels, states
from deploy.grafana.queries import came, quantile, rate, shared
from deploy.grafana.style import BAD, DOUBTFUL, GOOD, GREY, PURPLE, words

STATES = {"active": GOOD, "paused": GREY, "throttled": DOUBTFUL, "parked": BAD}
"""From the best to the worst: normal, intended, self-healing, waiting for a person."""
WORST_STATE = " or ".join(
    f'{number} * relay_sink_state{{SINK, state="{state}"}}' for number, state in enumerate(STATES)
)
WAITS = {
    "rate": GREY,
    "order": GREY,
    "pause": GREY,
    "digest": GREY,
    "sends": GOOD,
    "breaker": DOUBTFUL,
    "fetch": GOOD,
    "credit": PURPLE,
    "settlement": PURPLE,
    "owner": DOUBTFUL,
}
WAITS_FOR = " or ".join(
    f'{number} * (relay_sink_waits_for{{SINK, reason="{reason}"}} == 1)'
    for number, reason in enumerate(WAITS, 1)
)
STATE_SINCE = "relay_sink_state_timestamp_seconds{SINK}"
STILL = "relay_sink_standstill_seconds{SINK}"
LAGS = "relay_delivery_lag_seconds_bucket{SINK}"
PENDING = shared("relay_pending_deliveries{SINK}")
DEAD = shared("relay_dead_letters{SINK}")
OLDEST = "relay_oldest_pending_timestamp_seconds{SINK}"
OLDEST_AGE = f"(time() - {OLDEST}) * ({OLDEST} > bool 0)"
"""0 where nothing is pending."""

# fmt: off
PANELS = [
    *row("Sinks"),
    *line(6,
        states("State of the sinks", {"{{sink}}": f"max by (sink) ({WORST_STATE})"},
            mappings=words(*((number, *each) for number, each in enumerate(STATES.items()))),
            alerts=["RelaySinkParked", "RelaySinkPaused"]),
        levels("Time in that state", {"{{sink}}": f"time() - max by (sink) ({STATE_SINCE} > 0)"},
            "dthms"),
    ),
    *line(8,
        levels("Waiting", {"{{sink}}": f"sum by (sink) ({PENDING})"}, "locale",
            decimals=0),
        levels("Age of the oldest that waits", {"{{sink}}": f"max by (sink) ({OLDEST_AGE})"},
            "dthms", alerts=["RelayBacklogOld"]),
        levels("Dead letters", {"{{sink}}": f"sum by (sink) ({DEAD})"}, "locale",
            decimals=0, alerts=["RelayDeadLetters", "RelayDeadLettersForgotten"]),
    ),
    *line(6,
        states("What the sinks wait for", {"{{sink}}": f"max by (sink) ({WAITS_FOR})"},
            mappings=words(*((number, *each) for number, each in enumerate(WAITS.items(), 1)))),
        levels("Standing still for no reason", {"{{sink}}": f"max by (sink) ({STILL})"},
            "dthms", alerts=["RelaySinkStandsStill"]),
    ),
    *line(8,
        levels("Deliveries in and out",
            {"{{sink}}: {{direction}}":
                "max by (sink, direction) (relay_backlog_flow_per_second{SINK})"}, "ops",
            alerts=["RelaySinkFallsBehind"]),
        levels("Time until nothing waits",
            {"{{sink}}": "max by (sink) (relay_backlog_expected_end_seconds{SINK} < Inf)"},
            "dthms"),
        states("Sinks that fall behind",
            {"{{sink}}": "max by (sink) (relay_sink_falls_behind{SINK})"},
            mappings=words((0, "keeps up", GOOD), (1, "falls behind", DOUBTFUL)),
            alerts=["RelaySinkFallsBehind"]),
    ),
    *row("Deliveries"),
    *line(8,
        bars("Deliveries that ended",
            {
                "{{sink}}: {{outcome}}": came("relay_deliveries_total{SINK}", "sink", "outcome"),
                "{{sink}}: damaged body": came("relay_damaged_bodies_total{SINK}", "sink"),
            },
            colours={"/.*(dead|damaged body)/": BAD}, noValue="nothing was delivered"),
        bars("Tries by result", {"{{result}}": came("relay_attempts_total{SINK}", "result")},
            colours={"delivered": GOOD, "retry": DOUBTFUL, "parked": PURPLE, "dead": BAD},
            noValue="nothing was tried"),
        durations("How long a try takes",
            {"{{sink}}": quantile(0.95, "relay_attempt_seconds_bucket{SINK}", "sink")}),
    ),
    *line(8,
        durations("From receipt to delivery", {"{{sink}}": quantile(0.95, LAGS, "sink")}),
        heat("From receipt to delivery, all events", {"{{le}}": rate(LAGS, "le")}),
        bars("What leads had watched",
            {"{{result}}": came("relay_enrichments_total{RELAY}", "result")},
            colours={"late": DOUBTFUL, "failed": BAD, "paused": GREY, "busy": GREY},
            noValue="nobody was asked"),
    ),
]
