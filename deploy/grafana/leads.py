"""The part of the owners' dashboard about leads: how many, when, where from, of how many."""

from grafana_foundation_sdk.builders import bargauge, stat, timeseries

from deploy.grafana import asking, looks, panels, queries
from deploy.grafana.queries import grown
from deploy.grafana.words import LEADS, NONE_YET, per_hundred, watched


def leads_so_far(title: str, since: str, until: str) -> stat.Panel:
    """Count from midnight or from Monday, in the viewer's time zone."""
    return (
        panels.number(
            title,
            f"People who left their address in a form since {until}.",
            "locale",
            asking.value(grown(LEADS)),
        )
        .time_from(since)
        .hide_time_override(True)
        .span(4)
    )


def change(title: str, since: str, until: str) -> stat.Panel:
    """Compare with the same stretch of the week before, so that a Monday is compared with one."""
    return (
        panels.number(
            title,
            f"More or fewer leads than in the same time a week earlier, counted {until}."
            " Empty if there were none then.",
            "percentunit",
            asking.value(f"{queries.share(grown(LEADS), queries.grown_a_week_ago(LEADS))} - 1"),
        )
        .time_from(since)
        .hide_time_override(True)
        .decimals(0)
        .thresholds(looks.steps(looks.DOUBTFUL, (0, looks.GOOD)))
        .no_value(NONE_YET)
        .span(4)
    )


def leads_per_finish() -> stat.Panel:
    return (
        panels.number(
            "Leads per 100 finished views",
            "How many people left their address for every 100 who watched a video to the end"
            " (in the time shown). Forms may also be filled in earlier, so it can exceed 100.",
            "locale",
            asking.value(per_hundred(grown(LEADS), grown(watched("completed")))),
        )
        .decimals(0)
        .no_value(NONE_YET)
        .span(4)
    )


def leads_over_time() -> timeseries.Panel:
    return (
        panels.bars(
            "Leads over time",
            "New leads by where they come from. A bar is a day for two weeks and more; choose a"
            " shorter time at the top right to see hours.",
            "locale",
            asking.series(queries.grown_in_each_bar(LEADS, "source"), "{{source}}"),
        )
        .max_data_points(panels.DAYS)
        .interval("1h")
        .span(16)
        .height(9)
    )


def leads_by_source() -> bargauge.Panel:
    return (
        panels.ranking(
            "Leads by source",
            "New leads in the time shown, by where they come from.",
            "locale",
            asking.value(f"sort_desc({grown(LEADS, 'source')})", "{{source}}"),
        )
        .no_value(NONE_YET)
        .span(8)
        .height(9)
    )


def leads_per_finish_over_time() -> timeseries.Panel:
    finished = queries.grown_in_each_bar(watched("completed"), "source")
    leads = queries.grown_in_each_bar(LEADS, "source")
    return (
        panels.levels(
            "Leads per 100 finished views over time",
            "How well finished views turn into leads, by source; gaps are times without any.",
            "locale",
            asking.series(per_hundred(leads, finished), "{{source}}"),
        )
        .decimals(0)
        .max_data_points(panels.DAYS)
        .interval("1h")
        .span(12)
        .height(8)
    )
