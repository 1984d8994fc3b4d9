"""How a panel asks: over time or for one moment, as series or as rows."""

from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

DATASOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
"""What is chosen above the dashboard."""


def series(expr: str, legend: str) -> Dataquery:
    """Ask for values over time."""
    return Dataquery().expr(expr).legend_format(legend).range()


def value(expr: str, legend: str = "") -> Dataquery:
    """Ask for the value at the end of the shown time."""
    return Dataquery().expr(expr).legend_format(legend).instant()


def rows(expr: str) -> Dataquery:
    """Ask for the values at the end of the shown time, with their labels in columns."""
    return Dataquery().expr(expr).format(PromQueryFormat.TABLE).instant()


def rows_over_time(expr: str) -> Dataquery:
    """Ask for values over time, with their times in a column."""
    return Dataquery().expr(expr).format(PromQueryFormat.TABLE).range()


def buckets(expr: str) -> Dataquery:
    """Ask for a histogram over time, summed by `le`."""
    asked = Dataquery().expr(expr).legend_format("{{le}}").range()
    return asked.format(PromQueryFormat.HEATMAP)
