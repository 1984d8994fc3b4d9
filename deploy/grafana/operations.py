"""The dashboard for those who run the relay: first whether all is well, then each part in turn."""

from collections.abc import Iterable, Iterator, Sequence

from grafana_foundation_sdk.builders import (
    dashboard,
    heatmap,
    stat,
    statetimeline,
    table,
    timeseries,
)

from deploy.grafana import asking, delivering, frame, inside, looks, panels, receiving, runbook
from deploy.grafana.queries import counted, increase, of_relay, of_sink, of_source, share, total

UID = "relay-operations"

Panel = heatmap.Panel | stat.Panel | statetimeline.Panel | table.Panel | timeseries.Panel

FIRING = (
    'ALERTS{job=~"$job", namespace=~"$namespace", instance=~"$instance|", source=~"$source|",'
    ' sink=~"$sink|", alertname=~"Relay.+", alertstate="firing"}'
)
"""Prometheus' own record of alerts, with those that name no instance, source or sink."""
PAGES = {1: ("ticket", looks.DOUBTFUL), 2: ("page", looks.BAD)}

WORDS_OF_ANNOTATION = {
    "titleFormat": "{{alertname}}",
    "textFormat": "{{source}} {{sink}}",
    "tagKeys": "severity",
}
"""What a mark in the panels says of its alert."""


def glance() -> Iterator[stat.Panel]:
    up = panels.number(
        "Running",
        "Whether Prometheus reaches the relay. The sender gives up on an event after 620 s.",
        "none",
        asking.value(f"min ({of_relay('up')})"),
    )
    yield up.mappings(looks.said(inside.YES_NO)).thresholds(looks.steps(looks.BAD, (1, looks.GOOD)))
    yield panels.number(
        "Acknowledged",
        "Requests that were answered 2xx, in the time shown.",
        "locale",
        asking.value(counted(of_source("relay_requests_total", 'code=~"2.."'))),
    )
    yield panels.number(
        "Not durable",
        "Of what should have been acknowledged in the time shown, the share that was answered 503"
        " because the store did not take it. If it lasts ten minutes, events are lost.",
        "percentunit",
        asking.value(
            share(
                total(increase(receiving.UNAVAILABLE)),
                total(increase(receiving.OURS_TO_ACKNOWLEDGE)),
            )
        ),
    ).thresholds(looks.steps(looks.GOOD, (0.001, looks.DOUBTFUL), (0.05, looks.BAD)))
    yield panels.number(
        "Time to acknowledge",
        "99 of 100 were faster in the time shown. The sender waits 10 s.",
        "s",
        asking.value(
            f"histogram_quantile(0.99, {total(increase(receiving.ACKS), 'le')})",
        ),
    ).thresholds(looks.steps(looks.GOOD, (1, looks.DOUBTFUL), (5, looks.BAD)))
    yield panels.age(
        "Oldest that waits",
        "How long the oldest undelivered event of any chosen sink has been waiting.",
        asking.value(f"max ({delivering.OLDEST_AGE})"),
    ).thresholds(looks.steps(looks.GOOD, (300, looks.DOUBTFUL), (3600, looks.BAD)))
    yield panels.number(
        "Sinks not active",
        "Chosen sinks that are throttled, parked or paused.",
        "none",
        asking.value(f"sum ({of_sink('relay_sink_state', _NOT_ACTIVE)})"),
    ).thresholds(looks.steps(looks.GOOD, (1, looks.DOUBTFUL)))
    yield panels.number(
        "Dead letters",
        "Deliveries that were given up and wait for a decision.",
        "none",
        asking.value(f"sum ({of_sink('relay_dead_letters')})"),
    ).thresholds(looks.steps(looks.GOOD, (1, looks.DOUBTFUL)))
    yield panels.number(
        "Free above the limit",
        "Free space on the store's disk beyond [store] min_free; at 0 new events are refused.",
        "bytes",
        asking.value(
            f"min ({of_relay('relay_store_free_bytes')} - {of_relay('relay_store_min_free_bytes')})"
        ),
    ).thresholds(looks.steps(looks.BAD, (2**28, looks.DOUBTFUL), (2**30, looks.GOOD)))


_NOT_ACTIVE = 'state!="active"'


def alerts() -> statetimeline.Panel:
    pages = FIRING.replace("}", ', severity="page"}')
    return (
        panels.states(
            "Alerts",
            "Alerts that fired, with their source or sink, by what they ask for: a page cannot"
            " wait, a ticket can until the morning. A click leads to the alert's section in the"
            " runbook.",
            PAGES,
            asking.series(
                f"max by (alertname, source, sink) (2 * {pages} or {FIRING})",
                "{{alertname}} {{source}}{{sink}}",
            ),
        )
        .data_links([runbook.link("Runbook: what to do", "${__field.labels.alertname}")])
        .no_value("no alert fired")
        .span(24)
        .height(6)
    )


def annotation() -> dashboard.AnnotationQuery:
    """Mark in every panel when an alert fired."""
    return (
        dashboard.AnnotationQuery()
        .name("Alerts")
        .datasource(asking.DATASOURCE)
        .enable(True)
        .icon_color(looks.BAD)
        .expr(FIRING)
    )


def build() -> dashboard.Dashboard:
    board = frame.dashboard(
        "Relay",
        UID,
        "Whether the relay takes, keeps and delivers every event, and what is in its way.",
        shown="now-6h",
    )
    for variable in (
        *frame.targets(),
        frame.source("relay_requests_total"),
        frame.sink(),
        runbook.variable(),
    ):
        board.with_variable(variable)
    board.annotation(annotation())
    board.link(frame.link("Engagement", "relay-engagement", "For those who own the videos"))
    for panel in glance():
        board.with_panel(_linked(panel.span(3)))
    board.with_panel(alerts())
    parts: Sequence[tuple[str, Iterable[Panel]]] = (
        ("Receiving", receiving.acknowledgements()),
        ("Events", receiving.events()),
        ("Signatures", receiving.signatures()),
        ("Sinks", (delivering.state(), *delivering.backlog())),
        ("Deliveries", delivering.deliveries()),
        ("Store", inside.store()),
        ("Process", (*inside.process(), *inside.starts())),
    )
    for title, part in parts:
        board.with_row(dashboard.Row(title))
        for each in part:
            board.with_panel(_linked(each))
    return board


def _linked(panel: Panel) -> Panel:
    return panel.links(runbook.links(panel.build().title or ""))
