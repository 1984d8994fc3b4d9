"""The part of the owners' dashboard that compares hours and sources, and says how fresh it is."""

from grafana_foundation_sdk.builders import barchart, stat, table
from grafana_foundation_sdk.models import dashboard as models

from deploy.grafana import asking, panels, queries
from deploy.grafana.queries import grown
from deploy.grafana.words import LEADS, NONE_YET, per_hundred, watched


def by_hour(title: str, description: str, selector: str) -> barchart.Panel:
    """Count by the hour of the day, over all days of the range.

    The browser reads the hour off each bar's time, because Prometheus knows only UTC. A bar is a
    quarter of an hour, which no zone cuts; the points are as many as Prometheus lets pass.
    """
    named = {"Time": {"operation": "groupby", "aggregations": []}}
    added = {"Value": {"operation": "aggregate", "aggregations": ["sum"]}}
    steps = {
        "formatTime": {"timeField": "Time", "outputFormat": "HH", "useTimezone": True},
        "groupBy": {"fields": named | added},
        "sortBy": {"fields": {}, "sort": [{"field": "Time"}]},
        "organize": {"renameByName": {"Time": "Hour", "Value (sum)": title}},
    }
    return (
        panels.columns(
            title, description, "locale", asking.rows_over_time(queries.grown_in_each_bar(selector))
        )
        .transformations(
            [
                models.DataTransformerConfig(id_val=name, options=options)
                for name, options in steps.items()
            ]
        )
        .x_field("Hour")
        .interval("15m")
        .max_data_points(10_000)
        .decimals(0)
        .span(12)
        .height(8)
    )


def by_source() -> table.Panel:
    started, finished = (
        grown(watched(milestone), "source") for milestone in ("started", "completed")
    )
    leads = grown(LEADS, "source")
    headings = {
        "source": "Source",
        "Value #A": "Leads",
        "Value #B": "Started",
        "Value #C": "Finished",
        "Value #D": "Watched to the end",
        "Value #E": "Leads per 100 finished views",
    }
    return (
        panels.sheet(
            "By source",
            "The same figures side by side, for the time shown.",
            headings,
            asking.rows(leads),
            asking.rows(started),
            asking.rows(finished),
            asking.rows(queries.share(finished, started)),
            asking.rows(per_hundred(leads, finished)),
        )
        .decimals(0)
        .override_by_name("Watched to the end", [models.DynamicConfigValue("unit", "percentunit")])
        .span(16)
        .height(5)
    )


def latest(title: str, kind: str, what: str) -> stat.Panel:
    came = queries.of_source("relay_last_event_timestamp_seconds", f'event="{kind}"')
    return (
        panels.number(
            title,
            f"When the last {what} came. If this is longer ago than you would expect, ask those who"
            " run the relay before you trust the figures above.",
            "dateTimeFromNow",
            asking.value(f"1000 * max ({came} > 0)"),
        )
        .no_value(NONE_YET)
        .span(4)
        .height(5)
    )
