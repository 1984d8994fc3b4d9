"""The part of the owners' dashboard about views: how far people watch, and where they stop."""

from itertools import pairwise

from grafana_foundation_sdk.builders import bargauge, common, stat, timeseries
from grafana_foundation_sdk.models import common as kinds

from deploy.grafana import asking, looks, panels, queries
from deploy.grafana.queries import grown
from deploy.grafana.words import NONE_YET, STEPS, watched


def finish_rate() -> stat.Panel:
    finished = grown(watched("completed"))
    return (
        panels.number(
            "Watched to the end",
            "Of the viewers who started a video, how many finished it (in the time shown).",
            "percentunit",
            asking.value(queries.share(finished, grown(watched("started")))),
        )
        .decimals(0)
        .no_value(NONE_YET)
        .span(4)
    )


def funnel() -> bargauge.Panel:
    return (
        panels.ranking(
            "How far people watch",
            "Viewers who reached each step in the time shown. Each viewer counts once for each step"
            " of a video; 'finished' means 90 % of it.",
            "locale",
            *(asking.value(grown(watched(step)), name) for step, name in STEPS.items()),
        )
        .span(12)
        .height(8)
    )


def drop_off() -> bargauge.Panel:
    lost = [
        asking.value(
            f"1 - {queries.share(grown(watched(later)), grown(watched(earlier)))}",
            f"{name_earlier} → {name_later.removeprefix('Watched ')}",
        )
        for (earlier, name_earlier), (later, name_later) in pairwise(STEPS.items())
    ]
    return (
        panels.ranking(
            "Where people stop",
            "Of those who reached a step, how many did not reach the next one (in the time shown)."
            " The longest bar is where a video loses most of its viewers.",
            "percentunit",
            *lost,
        )
        .max(1)
        .decimals(0)
        .color_scheme(looks.by_threshold())
        .thresholds(
            looks.steps(looks.BLUE, (0.3, looks.DOUBTFUL), (0.5, looks.BAD)),
        )
        .no_value(NONE_YET)
        .span(12)
        .height(8)
    )


def views_over_time() -> timeseries.Panel:
    started, finished = (
        queries.grown_in_each_bar(watched(step)) for step in ("started", "completed")
    )
    return (
        panels.bars(
            "Views over time",
            "Viewers who started a video; the dark part in front is those who finished one.",
            "locale",
            asking.series(started, "Started"),
            asking.series(finished, "Finished"),
        )
        # Not on top of one another: who finished has started too.
        .stacking(common.StackingConfig().mode(kinds.StackingMode.NONE))
        .fill_opacity(100)
        .override_by_name("Started", looks.painted(looks.SKY))
        .override_by_name("Finished", looks.painted(looks.BLUE))
        .max_data_points(panels.DAYS)
        .interval("1h")
        .span(12)
        .height(8)
    )
