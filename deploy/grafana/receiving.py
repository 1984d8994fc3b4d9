"""Panels about the public listener: requests, events, signatures."""

from deploy.grafana import style
from deploy.grafana.layout import line, row
from deploy.grafana.panels import bars, durations, heat, levels, lines
from deploy.grafana.queries import came, counted, quantile, rate, shared
from deploy.grafana.style import BAD, BLUE, DOUBTFUL, GOOD, GREY, ORANGE, PURPLE, SKY

KEPT = shared("relay_quarantined_requests{SOURCE}")
ACKS = "relay_ack_seconds_bucket{SOURCE}"
SKEWS = "relay_signature_skew_seconds_bucket{SOURCE}"

KINDS = {
    "video.watched": SKY,
    "lead.captured": BLUE,
    "video.created": style.GREEN,
    "video.ready": style.YELLOW,
    "video.failed": BAD,
    "video.deleted": GREY,
    "webhook.test": PURPLE,
    "other": ORANGE,
}
"""One colour for each kind of event, in every panel."""

VIEWS = 'relay_events_total{SOURCE, outcome="accepted", event="video.watched"}'
OTHERS = 'relay_events_total{SOURCE, outcome="accepted", event!="video.watched"}'

# fmt: off
PANELS = [
    *row("Receiving"),
    *line(8,
        bars("Requests by answer", {"{{code}}": came("relay_requests_total{SOURCE}", "code")},
            colours={"202": GOOD, "200": SKY, "/4../": DOUBTFUL, "/5../": BAD},
            noValue="nobody called", alerts=["RelayNotDurable"]),
        bars("Turned away by reason",
            {"{{reason}}": came("relay_rejected_total{SOURCE}", "reason")},
            colours={
                "mismatch": PURPLE,
                "/ambiguous|malformed|missing/": SKY,
                "/stale|future/": DOUBTFUL,
                "/path|method/": GREY,
                "/headers|too_large|timeout|disconnected/": BLUE,
                "unavailable": BAD,
            },
            noValue="nothing was turned away",
            alerts=["RelaySignatureFailures", "RelayAllStale", "RelayBodiesRefused"]),
    ),
    *line(8,
        durations("Time to acknowledge",
            {"half": quantile(0.5, ACKS), "95 of 100": quantile(0.95, ACKS),
             "99 of 100": quantile(0.99, ACKS)},
            colours={"half": SKY, "95 of 100": BLUE, "99 of 100": ORANGE},
            alerts=["RelayAcknowledgementsSlow"]),
        heat("Time to acknowledge, all requests", {"{{le}}": rate(ACKS, "le")}),
    ),
    *row("Events"),
    *line(9,
        bars("Views", {"{{source}}": came(VIEWS, "source")}, noValue="no view came"),
        bars("Events other than views", {"{{event}}": came(OTHERS, "event")},
            colours=KINDS, noValue="no event came"),
        bars("Duplicates and oddities",
            {"{{outcome}}": came('relay_events_total{SOURCE, outcome!="accepted"}', "outcome")},
            colours={"duplicate": SKY, "conflict": ORANGE, "unreadable": BAD}, noValue="none came",
            alerts=["RelayDuplicates", "RelayConflictingEvents", "RelayUnreadableEvents"]),
        levels("Time since the last event",
            {"{{event}}":
                "time() - max by (event) (relay_last_event_timestamp_seconds{SOURCE} > 0)"},
            "dthms", colours=KINDS, alerts=["RelayNoEvents"]),
    ),
    *row("Signatures"),
    *line(8,
        bars("Verified, by secret",
            {
                "{{source}}, secret {{secret}}":
                    came("relay_signatures_total{SOURCE}", "source", "secret"),
                "{{source}}, no secret": came("relay_mismatch_retries_total{SOURCE}", "source"),
            },
            colours={"/.*no secret/": BAD}, noValue="nothing was verified",
            alerts=["RelaySignatureFailures", "RelayPreviousSecretUsed"]),
        lines("Clock difference to the sender",
            {"5 of 100 below": quantile(0.05, SKEWS), "half": quantile(0.5, SKEWS),
             "95 of 100 below": quantile(0.95, SKEWS),
             "{{instance}}, to the database":
                "max by (instance) (relay_clock_offset_seconds{RELAY})"}, "s",
            colours={"5 of 100 below": SKY, "half": BLUE, "95 of 100 below": ORANGE},
            alerts=["RelayClockSkew", "RelayAllStale", "RelayClockOffset"]),
        levels("Kept during a rotation",
            {
                "{{source}}: kept": f"sum by (source) ({KEPT})",
                "{{source}}: lost": counted(
                    "relay_quarantine_dropped_total{SOURCE}", "source", window="$__rate_interval"),
            },
            "none", decimals=0, colours={"/.*lost.*/": BAD},
            alerts=["RelayRotationUnfinished", "RelayQuarantineDropping"]),
    ),
]
