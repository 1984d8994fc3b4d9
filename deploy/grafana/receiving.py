"""The part of the relay's dashboard about its door: what came in, and what became of it."""

from collections.abc import Iterator

from grafana_foundation_sdk.builders import heatmap, timeseries

from deploy.grafana import asking, looks, panels, queries
from deploy.grafana.queries import came, of_source, quantile, rate, total

ACKS = of_source("relay_ack_seconds_bucket")
SKEWS = of_source("relay_signature_skew_seconds_bucket")
REQUESTS = of_source("relay_requests_total")
EVENTS = "relay_events_total"
NEW = 'outcome="accepted"'

OURS_TO_ACKNOWLEDGE = of_source("relay_requests_total", 'code=~"2..|503"')
UNAVAILABLE = of_source("relay_requests_total", 'code="503"')

KINDS = {
    "video.watched": looks.SKY,
    "lead.captured": looks.BLUE,
    "video.created": looks.GREEN,
    "video.ready": looks.YELLOW,
    "video.failed": looks.BAD,
    "video.deleted": looks.GREY,
    "webhook.test": looks.PURPLE,
    "other": looks.ORANGE,
}

Lines = timeseries.Panel


def acknowledgements() -> Iterator[Lines | heatmap.Panel]:
    yield (
        panels.bars(
            "Requests by answer",
            "Requests by the status that they were answered with: 202 is a new event, 200 a"
            " known or unreadable one, 401 a failed signature, 503 that the store did not take it."
            " The source unknown is a request to no source's path.",
            "locale",
            asking.series(came(REQUESTS, "code"), "{{code}}"),
        )
        .override_by_name("202", looks.painted(looks.GOOD))
        .override_by_name("200", looks.painted(looks.SKY))
        .override_by_regexp("4..", looks.painted(looks.DOUBTFUL))
        .override_by_regexp("5..", looks.painted(looks.BAD))
        .no_value("nobody called")
        .span(12)
        .height(8)
    )
    yield (
        panels.bars(
            "Turned away by reason",
            "Requests that were not acknowledged. mismatch, malformed and missing are"
            " strangers or a wrong secret; stale and future a wrong clock; unavailable is the"
            " store: what it does not take within the sender's ten minutes is lost.",
            "locale",
            asking.series(came(of_source("relay_rejected_total"), "reason"), "{{reason}}"),
        )
        .override_by_name("mismatch", looks.painted(looks.PURPLE))
        .override_by_regexp("ambiguous|malformed|missing", looks.painted(looks.SKY))
        .override_by_regexp("stale|future", looks.painted(looks.DOUBTFUL))
        .override_by_regexp("path|method", looks.painted(looks.GREY))
        .override_by_regexp("too_large|timeout|disconnected", looks.painted(looks.BLUE))
        .override_by_name("unavailable", looks.painted(looks.BAD))
        .no_value("nothing was turned away")
        .span(12)
        .height(8)
    )
    yield (
        panels.durations(
            "Time to acknowledge",
            "From a request's head to its 2xx, with the commit. The sender gives up after 10 s and"
            " tries again; near that line events come twice, and then not at all.",
            asking.series(quantile(0.5, ACKS), "half"),
            asking.series(quantile(0.95, ACKS), "95 of 100"),
            asking.series(quantile(0.99, ACKS), "99 of 100"),
        )
        .override_by_name("half", looks.painted(looks.SKY))
        .override_by_name("95 of 100", looks.painted(looks.BLUE))
        .override_by_name("99 of 100", looks.painted(looks.ORANGE))
        .span(12)
        .height(8)
    )
    yield (
        panels.heat(
            "Time to acknowledge, all requests",
            "How many requests took how long: two bands mean two kinds of requests, or a disk that"
            " stalls now and then.",
            "s",
            asking.buckets(total(rate(ACKS), "le")),
        )
        .span(12)
        .height(8)
    )


def _by_kind(panel: Lines) -> Lines:
    """Give each kind of event one colour, wherever it is shown."""
    for kind, colour in KINDS.items():
        panel.override_by_name(kind, looks.painted(colour))
    return panel


def events() -> Iterator[Lines]:
    yield (
        panels.bars(
            "Views",
            "Verified video.watched events that were new, by where they come from.",
            "locale",
            asking.series(
                came(of_source(EVENTS, NEW, 'event="video.watched"'), "source"), "{{source}}"
            ),
        )
        .no_value("no view came")
        .span(6)
        .height(9)
    )
    yield _by_kind(
        panels.bars(
            "Events other than views",
            "Verified events that were new, by kind. Views stand beside them, because leads could"
            " not be seen beneath so many.",
            "locale",
            asking.series(
                came(of_source(EVENTS, NEW, 'event!="video.watched"'), "event"), "{{event}}"
            ),
        )
        .no_value("no event came")
        .span(6)
        .height(9)
    )
    yield (
        panels.bars(
            "Duplicates and oddities",
            "Verified requests that brought no new event. Duplicates are the sender's retries and"
            " harmless; many of them mean that acknowledgements come late. A conflict is a known id"
            " with another body (the first stays); unreadable ones wait among the dead letters.",
            "locale",
            asking.series(
                came(of_source(EVENTS, 'outcome!="accepted"'), "outcome"),
                "{{outcome}}",
            ),
        )
        .override_by_name("duplicate", looks.painted(looks.SKY))
        .override_by_name("conflict", looks.painted(looks.ORANGE))
        .override_by_name("unreadable", looks.painted(looks.BAD))
        .no_value("none came")
        .span(6)
        .height(9)
    )
    yield _by_kind(
        panels.levels(
            "Time since the last event",
            "How long ago a new event of each kind came last, in hours, minutes and seconds. A line"
            " that climbs beyond the usual means that the sender has stopped, or cannot reach the"
            " relay.",
            "dthms",
            asking.series(
                f"time() - max by (event) ({of_source('relay_last_event_timestamp_seconds')} > 0)",
                "{{event}}",
            ),
        )
        .span(6)
        .height(9)
    )


def signatures() -> Iterator[Lines]:
    yield (
        panels.bars(
            "Verified, by secret",
            "Requests by the secret that verified them. After a rotation, the line of"
            " the old secret must go to 0 before it is taken out of the config. Those that fit no"
            " secret are only what the sender seems to try again.",
            "locale",
            asking.series(
                came(of_source("relay_signatures_total"), "source", "secret"),
                "{{source}}, secret {{secret}}",
            ),
            asking.series(
                came(of_source("relay_mismatch_retries_total"), "source"),
                "{{source}}, no secret",
            ),
        )
        .override_by_regexp(".*no secret", looks.painted(looks.BAD))
        .no_value("nothing was verified")
        .span(8)
        .height(8)
    )
    yield (
        panels.lines(
            "Clock difference to the sender",
            "Our clock less the time in the signatures; below 0 the sender's clock is ahead. Beyond"
            " the source's tolerance (5 minutes unless set) every request is refused.",
            "s",
            asking.series(quantile(0.05, SKEWS), "5 of 100 below"),
            asking.series(quantile(0.5, SKEWS), "half"),
            asking.series(quantile(0.95, SKEWS), "95 of 100 below"),
        )
        .override_by_name("5 of 100 below", looks.painted(looks.SKY))
        .override_by_name("half", looks.painted(looks.BLUE))
        .override_by_name("95 of 100 below", looks.painted(looks.ORANGE))
        .span(8)
        .height(8)
    )
    yield (
        panels.levels(
            "Kept during a rotation",
            "Requests that fit no secret and are kept until the new one is there, and those that a"
            " limit kept out, which are lost. Both are 0 unless a rotation is under way.",
            "none",
            asking.series(
                f"sum by (source) ({of_source('relay_quarantined_requests')})",
                "{{source}}: kept",
            ),
            asking.series(
                queries.counted(
                    of_source("relay_quarantine_dropped_total"),
                    "source",
                    window="$__rate_interval",
                ),
                "{{source}}: lost",
            ),
        )
        .override_by_regexp(".*lost.*", looks.painted(looks.BAD))
        .decimals(0)
        .span(8)
        .height(8)
    )
