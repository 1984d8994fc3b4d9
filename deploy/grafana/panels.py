"""The kinds of panels that the dashboards are made of, each with what all of its kind have alike.

What differs from panel to panel is said where the panel is: title, description, unit and queries
are demanded here, so that none is without.
"""

from collections.abc import Mapping, Sequence
from string import ascii_uppercase

from grafana_foundation_sdk.builders import (
    barchart,
    bargauge,
    common,
    heatmap,
    stat,
    statetimeline,
    table,
    timeseries,
)
from grafana_foundation_sdk.builders.prometheus import Dataquery as Query
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.variants import Dataquery
from grafana_foundation_sdk.models import common as kinds
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode

from deploy.grafana import looks
from deploy.grafana.asking import DATASOURCE

DAYS = 13
"""How many points the owners' dashboard asks for at least: two weeks become bars of a day each."""


def number(title: str, description: str, unit: str, *queries: Query) -> stat.Panel:
    """One value, or few, in large letters."""
    return (
        stat.Panel()
        .title(title)
        .description(description)
        .unit(unit)
        .datasource(DATASOURCE)
        .targets(_named(queries))
        .height(4)
        .reduce_options(_last())
        .graph_mode(kinds.BigValueGraphMode.NONE)
        .color_mode(kinds.BigValueColorMode.VALUE)
        .color_scheme(looks.by_threshold())
        .thresholds(looks.steps(looks.PLAIN))
        .mappings(looks.without_numbers())
        .no_value(looks.NOTHING)
    )


def age(title: str, description: str, *queries: Query) -> stat.Panel:
    """Seconds as "1 hour, 6 minutes": the unit writes as many parts more as there are decimals."""
    return number(title, description, "dtdurations", *queries).decimals(1)


def levels(title: str, description: str, unit: str, *queries: Query) -> timeseries.Panel:
    """Lines over a ground: of what is at 0 when all is quiet."""
    return lines(title, description, unit, *queries).axis_soft_min(0)


def lines(title: str, description: str, unit: str, *queries: Query) -> timeseries.Panel:
    return (
        _over_time(title, description, unit, queries)
        .draw_style(kinds.GraphDrawStyle.LINE)
        .line_width(2)
        .fill_opacity(8)
        .show_points(kinds.VisibilityMode.NEVER)
        .legend(_legend("last", "max"))
    )


def durations(title: str, description: str, *queries: Query) -> timeseries.Panel:
    """Seconds on a scale on which milliseconds and minutes can both be read."""
    return (
        lines(title, description, "s", *queries)
        .scale_distribution(
            common.ScaleDistributionConfig().type(kinds.ScaleDistribution.LOG).log(10)
        )
        .fill_opacity(0)
    )


def bars(title: str, description: str, unit: str, *queries: Query) -> timeseries.Panel:
    """Counts of equal stretches of time, on top of one another.

    A bar is never of less than 5 minutes, so that it has several scrapes also where they are 60 s
    apart. Counts, not rates, because what comes once must be seen.
    """
    return (
        _over_time(title, description, unit, queries)
        .draw_style(kinds.GraphDrawStyle.BARS)
        .bar_alignment(kinds.BarAlignment.AFTER)
        .bar_width_factor(0.85)
        .line_width(0)
        .fill_opacity(85)
        .axis_soft_min(0)
        .stacking(common.StackingConfig().mode(kinds.StackingMode.NORMAL))
        .decimals(0)
        .max_data_points(100)
        .interval("5m")
        .legend(_legend("sum"))
    )


def ranking(title: str, description: str, unit: str, *queries: Query) -> bargauge.Panel:
    """Bars beside each other that are compared at one moment, in the order of the queries."""
    return (
        bargauge.Panel()
        .title(title)
        .description(description)
        .unit(unit)
        .datasource(DATASOURCE)
        .targets(_named(queries))
        .reduce_options(_last())
        .orientation(kinds.VizOrientation.HORIZONTAL)
        .display_mode(kinds.BarGaugeDisplayMode.BASIC)
        .value_mode(kinds.BarGaugeValueMode.TEXT)
        .name_placement(kinds.BarGaugeNamePlacement.LEFT)
        .show_unfilled(True)
        .color_scheme(looks.fixed(looks.BLUE))
        .min(0)
        .no_value(looks.NOTHING)
    )


def columns(title: str, description: str, unit: str, query: Query) -> barchart.Panel:
    """One bar for each row of a table, whose first column names it."""
    return (
        barchart.Panel()
        .title(title)
        .description(description)
        .unit(unit)
        .datasource(DATASOURCE)
        .targets(_named([query]))
        .orientation(kinds.VizOrientation.VERTICAL)
        .show_value(kinds.VisibilityMode.NEVER)
        .bar_width(0.85)
        .color_scheme(looks.fixed(looks.BLUE))
        .fill_opacity(85)
        .line_width(0)
        .legend(common.VizLegendOptions().show_legend(False))
        .min(0)
    )


def heat(title: str, description: str, unit: str, query: Query) -> heatmap.Panel:
    """How many fell into which bucket, over time; the unit is that of the buckets."""
    return (
        heatmap.Panel()
        .title(title)
        .description(description)
        .unit("short")
        .datasource(DATASOURCE)
        .targets(_named([query]))
        .calculate(False)
        .y_axis(heatmap.YAxisConfig().unit(unit))
        .color(
            heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Viridis").steps(64)
        )
        .cell_gap(1)
    )


def states(
    title: str, description: str, words: Mapping[int, tuple[str, str]], query: Query
) -> statetimeline.Panel:
    """What was in which state when."""
    return (
        statetimeline.Panel()
        .title(title)
        .description(description)
        .unit("none")
        .datasource(DATASOURCE)
        .targets(_named([query]))
        .mappings(looks.said(words))
        .color_scheme(looks.by_threshold())
        .show_value(kinds.VisibilityMode.AUTO)
        .row_height(0.8)
        .merge_values(True)
        .legend(common.VizLegendOptions().show_legend(True))
    )


def sheet(
    title: str, description: str, headings: Mapping[str, str], *queries: Query
) -> table.Panel:
    """A table of what the queries say about the same labels; fields without a heading are left out.

    The value of the only query is called Value; of several, Value #A, Value #B and so on.
    """
    order = {field: place for place, field in enumerate(headings)}
    merge = models.DataTransformerConfig(id_val="merge", options={})
    shown = models.DataTransformerConfig(
        id_val="filterFieldsByName", options={"include": {"names": [*headings]}}
    )
    arranged = models.DataTransformerConfig(
        id_val="organize", options={"indexByName": order, "renameByName": {**headings}}
    )
    return (
        table.Panel()
        .title(title)
        .description(description)
        .unit("locale")
        .datasource(DATASOURCE)
        .targets(_named(queries))
        .transformations([merge, shown, arranged])
        .no_value(looks.NOTHING)
    )


def _over_time(
    title: str, description: str, unit: str, queries: Sequence[Query]
) -> timeseries.Panel:
    return (
        timeseries.Panel()
        .title(title)
        .description(description)
        .unit(unit)
        .datasource(DATASOURCE)
        .targets(_named(queries))
        .tooltip(
            common.VizTooltipOptions()
            .mode(kinds.TooltipDisplayMode.MULTI)
            .sort(kinds.SortOrder.DESCENDING)
        )
    )


def _named(queries: Sequence[Query]) -> list[Builder[Dataquery]]:
    """Letter the queries, as Grafana does; they must say themselves where they are asked."""
    named = zip(queries, ascii_uppercase, strict=False)
    return [query.ref_id(letter).datasource(DATASOURCE) for query, letter in named]


def _last() -> common.ReduceDataOptions:
    return common.ReduceDataOptions().calcs(["lastNotNull"])


def _legend(*calculations: str) -> common.VizLegendOptions:
    names = {"last": "lastNotNull", "max": "max", "sum": "sum"}
    return (
        common.VizLegendOptions()
        .show_legend(True)
        .display_mode(kinds.LegendDisplayMode.TABLE)
        .placement(kinds.LegendPlacement.BOTTOM)
        .calcs([names[each] for each in calculations])
    )
