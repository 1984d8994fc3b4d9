"""The part of the owners' dashboard that compares hours and sources, and says how fresh it is."""

from grafana_foundation_sdk.builders import barchart, stat, table
from grafana_foundation_sdk.models import dashboard as models

from deploy.grafana import asking, panels, queries
from deploy.grafana.words import LEADS, NONE_YET, counted, per_hundred, watched


def by_hour(title: str, description: str, selector: str) -> barchart.Panel:
    return (
        panels.columns(title, description, "locale", asking.rows(queries.by_hour_of_day(selector)))
        .transformations(
            [
                models.DataTransformerConfig(
                    id_val="filterFieldsByName", options={"include": {"names": ["hour", "Value"]}}
                ),
                models.DataTransformerConfig(
                    id_val="sortBy", options={"fields": {}, "sort": [{"field": "hour"}]}
                ),
            ]
        )
        .x_field("hour")
        .decimals(0)
        .span(12)
        .height(8)
    )


def by_source() -> table.Panel:
    started, finished = (
        counted(watched(milestone), "source") for milestone in ("started", "completed")
    )
    leads = counted(LEADS, "source")
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
            asking.rows(queries.whole(leads)),
            asking.rows(queries.whole(started)),
            asking.rows(queries.whole(finished)),
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
