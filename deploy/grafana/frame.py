"""What is around the panels of a dashboard: its variables, its links, the time that it shows."""

from collections.abc import Iterator

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.models import dashboard as models

from deploy.grafana.asking import DATASOURCE
from deploy.grafana.queries import of_relay

TAG = "relay"
ALL = models.VariableOption(selected=True, text=["All"], value=["$__all"])
ANY = ".+"
"""What "All" is to a query: every value, also one that came up after the page was loaded."""
ANY_OR_NONE = ".*"
"""The same for a label that not every Prometheus gives."""


def dashboard(title: str, uid: str, description: str, *, shown: str) -> builders.Dashboard:
    """Make it without panels; `shown` is the beginning of the time that is shown at first."""
    return (
        builders.Dashboard(title)
        .uid(uid)
        .description(description)
        .tags([TAG])
        .readonly()
        .timezone("browser")
        .week_start("monday")
        .time(shown, "now")
        .refresh("1m")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .with_variable(
            builders.DatasourceVariable("datasource").label("Data source").type("prometheus")
        )
    )


def targets() -> Iterator[builders.QueryVariable]:
    """Make the variables for which relays are meant, where one Prometheus watches several."""
    yield _chosen("job", "label_values(relay_build_info, job)")
    yield (
        _chosen("namespace", 'label_values(relay_build_info{job=~"$job"}, namespace)')
        .description("Of a cluster; elsewhere there is none.")
        .all_value(ANY_OR_NONE)
    )
    yield _chosen(
        "instance",
        'label_values(relay_build_info{job=~"$job", namespace=~"$namespace"}, instance)',
    )


def hidden_targets() -> Iterator[builders.QueryVariable]:
    """Make the same without showing them: they mean nothing to those who own the videos."""
    for variable in targets():
        yield variable.hide(models.VariableHide.HIDE_VARIABLE)


def source(metric: str) -> builders.QueryVariable:
    """Make the choice of sources, of those that the metric knows."""
    return _chosen("source", f"label_values({of_relay(metric)}, source)").description(
        "Where events come from, as the relay's config names it."
    )


def sink() -> builders.QueryVariable:
    return _chosen(
        "sink", f"label_values({of_relay('relay_pending_deliveries')}, sink)"
    ).description("Where events go, as the relay's config names it.")


def link(title: str, uid: str, tooltip: str) -> builders.DashboardLink:
    """Lead to another dashboard with the same choices; each has a time of its own that suits it."""
    return (
        builders.DashboardLink(title)
        .type(models.DashboardLinkType.LINK)
        .url(f"/d/{uid}")
        .icon("dashboard")
        .tooltip(tooltip)
        .include_vars(True)
    )


def _chosen(name: str, query: str) -> builders.QueryVariable:
    return (
        builders.QueryVariable(name)
        .label(name.title())
        .datasource(DATASOURCE)
        .query(query)
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(ANY)
        .current(ALL)
    )
