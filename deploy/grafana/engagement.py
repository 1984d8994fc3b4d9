"""The dashboard for those who own the videos: what viewers do, and how many leave an address.

The words are theirs: no sinks, no milestones, no status codes.
"""

from grafana_foundation_sdk.builders import dashboard

from deploy.grafana import comparing, frame, leads, queries, views
from deploy.grafana.words import LEADS

UID = "relay-engagement"


def build() -> dashboard.Dashboard:
    board = frame.dashboard(
        "Engagement",
        UID,
        "Leads and views of your videos: how many, when, where from, and where viewers stop.",
        shown="now-13d/d",
    )
    for variable in (*frame.hidden_targets(), frame.source("relay_leads_captured_total")):
        board.with_variable(variable)
    board.link(frame.link("Relay", "relay-operations", "For those who run the relay"))
    monday = "since Monday"
    midnight = "since midnight"
    for panel in (
        leads.leads_so_far("Leads today", "now/d", "midnight"),
        leads.change("Change from a week ago", "now/d", midnight),
        leads.leads_so_far("Leads this week", "now/w", "Monday"),
        leads.change("Change from last week", "now/w", monday),
        views.finish_rate(),
        leads.leads_per_finish(),
        leads.leads_over_time(),
        leads.leads_by_source(),
        views.funnel(),
        views.drop_off(),
        views.views_over_time(),
        leads.leads_per_finish_over_time(),
        comparing.by_hour(
            "When people watch",
            "Views started and steps reached by hour of the day, over all days shown, in the time"
            " zone of your Grafana profile, which is your browser's unless you have set another.",
            queries.of_source("relay_video_watched_total"),
        ),
        comparing.by_hour(
            "When leads come in",
            "New leads by hour of the day, over all days shown, in the same time zone.",
            LEADS,
        ),
        comparing.by_source(),
        comparing.latest("Last lead", "lead.captured", "lead"),
        comparing.latest("Last view", "video.watched", "sign of a viewer"),
    ):
        board.with_panel(panel)
    return board
