"""The dashboard for operators: whether all is well, then each part in turn."""

from deploy.grafana import delivery, process, receiving
from deploy.grafana.layout import COMMON, HIDDEN, choice, line, other, placed, source, targets
from deploy.grafana.panels import DATASOURCE, runbook, stat, states
from deploy.grafana.queries import RANGE, counted, share
from deploy.grafana.style import BAD, DOUBTFUL, GOOD, YES_NO, Json, steps, words

RUNBOOK = "http://127.0.0.1:9090/user/runbook.html"
"""Where deploy/compose has Prometheus serve deploy/prometheus/assets/runbook.html."""

_REFUSED = f'sum (increase(relay_requests_total{{SOURCE, code="503"}}[{RANGE}]))'
_OURS = f'sum (increase(relay_requests_total{{SOURCE, code=~"2..|503"}}[{RANGE}]))'
NOT_DURABLE = share(_REFUSED, _OURS)
TIME_TO_ACKNOWLEDGE = f"histogram_quantile(0.99, sum by (le) (increase({receiving.ACKS}[{RANGE}])))"
FREE = "min (relay_store_free_bytes{RELAY} - relay_store_min_free_bytes{RELAY})"
FIRING = (
    'ALERTS{job=~"$job", namespace=~"$namespace", instance=~"$instance|", source=~"$source|",'
    ' sink=~"$sink|", alertname=~"Relay.+", alertstate="firing"}'
)
"""Prometheus' own record of alerts, including those without instance, source or sink."""
SINKS = "Where events go, as the relay's config names it."
PAGES = FIRING.replace("}", ', severity="page"}')

MARKS: Json = {
    "name": "Alerts",
    "datasource": DATASOURCE,
    "enable": True,
    "iconColor": BAD,
    "expr": FIRING,
    "titleFormat": "{{alertname}}",
    "textFormat": "{{source}} {{sink}}",
    "tagKeys": "severity",
}
"""Marks alerts in every panel."""

# fmt: off
GLANCE = [
    *line(4,
        stat("Running", "min (up{RELAY})", "none",
            mappings=YES_NO, thresholds=steps(BAD, (1, GOOD)), alerts=["RelayDown"]),
        stat("Acknowledged", counted('relay_requests_total{SOURCE, code=~"2.."}'), "locale"),
        stat("Not durable", NOT_DURABLE, "percentunit",
            thresholds=steps(GOOD, (0.001, DOUBTFUL), (0.05, BAD)), alerts=["RelayNotDurable"]),
        stat("Time to acknowledge", TIME_TO_ACKNOWLEDGE, "s",
            thresholds=steps(GOOD, (1, DOUBTFUL), (5, BAD)), alerts=["RelayAcknowledgementsSlow"]),
        stat("Oldest that waits", f"max ({delivery.OLDEST_AGE})", "dtdurations", decimals=1,
            thresholds=steps(GOOD, (300, DOUBTFUL), (3600, BAD)), alerts=["RelayBacklogOld"]),
        stat("Sinks not active", 'sum (relay_sink_state{SINK, state!="active"})', "none",
            thresholds=steps(GOOD, (1, DOUBTFUL)), alerts=["RelaySinkParked", "RelaySinkPaused"]),
        stat("Dead letters", f"sum ({delivery.DEAD})", "none",
            thresholds=steps(GOOD, (1, DOUBTFUL)),
            alerts=["RelayDeadLetters", "RelayDeadLettersForgotten"]),
        stat("Free above the limit", FREE, "bytes", noValue="in a database",
            thresholds=steps(BAD, (2**28, DOUBTFUL), (2**30, GOOD)),
            alerts=["RelayDiskFull", "RelayDiskFilling"]),
    ),
    *line(6,
        states("Alerts",
            {"{{alertname}} {{source}}{{sink}}":
                f"max by (alertname, source, sink) (2 * {PAGES} or {FIRING})"},
            mappings=words((1, "ticket", DOUBTFUL), (2, "page", BAD)), noValue="no alert fired",
            links=[runbook("what to do", "${__field.labels.alertname}")]),
    ),
]
# fmt: on

BOARD: Json = COMMON | {
    "title": "Relay",
    "uid": "relay-operations",
    "description": (
        "Whether the relay takes, keeps and delivers every event, and what is in its way."
    ),
    "time": {"from": "now-6h", "to": "now"},
    "templating": {
        "list": [
            *targets(),
            source("relay_requests_total"),
            choice("sink", "relay_pending_deliveries{RELAY}", description=SINKS),
            {"type": "constant", "name": "runbook", "hide": HIDDEN, "query": RUNBOOK},
        ]
    },
    "annotations": {"list": [MARKS]},
    "links": [other("Engagement", "relay-engagement", "For those who own the videos")],
    "panels": [*placed([*GLANCE, *receiving.PANELS, *delivery.PANELS, *process.PANELS])],
}
