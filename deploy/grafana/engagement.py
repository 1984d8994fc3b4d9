"""The dashboard for the owners of the videos: views and leads, in their words."""

from itertools import pairwise

from deploy.grafana.layout import COMMON, HIDDEN, line, other, placed, source, targets
from deploy.grafana.panels import bars, by_hour, levels, ranking, stat, table
from deploy.grafana.queries import grown, grown_a_week_ago, grown_in_each_bar, share
from deploy.grafana.style import BAD, BLUE, DOUBTFUL, GOOD, NONE_YET, SKY, Json, steps

LEADS = "relay_leads_captured_total{SOURCE}"
STARTED = 'relay_video_watched_total{SOURCE, milestone="started"}'
FINISHED = 'relay_video_watched_total{SOURCE, milestone="completed"}'
STEPS = {
    "Started": STARTED,
    "Watched 25 %": 'relay_video_watched_total{SOURCE, milestone="25%"}',
    "Watched 50 %": 'relay_video_watched_total{SOURCE, milestone="50%"}',
    "Watched 75 %": 'relay_video_watched_total{SOURCE, milestone="75%"}',
    "Finished": FINISHED,
}
"""The milestones in the order in which a viewer passes them."""
LOST = {
    f"{earlier} → {later.removeprefix('Watched ')}": (
        f"1 - {share(grown(STEPS[later]), grown(STEPS[earlier]))}"
    )
    for earlier, later in pairwise(STEPS)
}
CHANGE = f"{share(grown(LEADS), grown_a_week_ago(LEADS))} - 1"
"""Against the same stretch of the week before: a Monday is compared with a Monday."""
LAST_LEAD = 'relay_last_event_timestamp_seconds{SOURCE, event="lead.captured"}'
LAST_VIEW = 'relay_last_event_timestamp_seconds{SOURCE, event="video.watched"}'

TODAY: Json = {"timeFrom": "now/d", "hideTimeOverride": True}
THIS_WEEK: Json = {"timeFrom": "now/w", "hideTimeOverride": True}
DAYS: Json = {"maxDataPoints": 13, "interval": "1h"}
"""Two weeks become bars of a day each, and less becomes bars of at least an hour."""


def _per_hundred(part: str, of: str) -> str:
    return f"100 * {share(part, of)}"


# fmt: off
_ROUND: Json = {"decimals": 0, "noValue": NONE_YET}
_CHANGED = _ROUND | {"thresholds": steps(DOUBTFUL, (0, GOOD))}
_LEADS, _STARTED, _FINISHED = (grown(each, "source") for each in (LEADS, STARTED, FINISHED))

PANELS = [
    *line(4,
        stat("Leads today", grown(LEADS), "locale", **TODAY),
        stat("Change from a week ago", CHANGE, "percentunit", **TODAY, **_CHANGED),
        stat("Leads this week", grown(LEADS), "locale", **THIS_WEEK),
        stat("Change from last week", CHANGE, "percentunit", **THIS_WEEK, **_CHANGED),
        stat("Watched to the end", share(grown(FINISHED), grown(STARTED)), "percentunit", **_ROUND),
        stat("Leads per 100 finished views",
            _per_hundred(grown(LEADS), grown(FINISHED)), "locale", **_ROUND),
    ),
    *line(9,
        bars("Leads over time", {"{{source}}": grown_in_each_bar(LEADS, "source")}, **DAYS),
        ranking("Leads by source",
            {"{{source}}": f"sort_desc({_LEADS})"}, "locale", noValue=NONE_YET),
        widths=(16, 8),
    ),
    *line(8,
        ranking("How far people watch",
            {name: grown(views) for name, views in STEPS.items()}, "locale"),
        ranking("Where people stop",
            LOST, "percentunit", max=1, color={"mode": "thresholds"},
            thresholds=steps(BLUE, (0.3, DOUBTFUL), (0.5, BAD)), **_ROUND),
    ),
    *line(8,
        # Not stacked: every viewer who finished also started.
        bars("Views over time",
            {"Started": grown_in_each_bar(STARTED), "Finished": grown_in_each_bar(FINISHED)},
            custom={"stacking": {"mode": "none"}, "fillOpacity": 100},
            colours={"Started": SKY, "Finished": BLUE}, **DAYS),
        levels("Leads per 100 finished views over time",
            {"{{source}}": _per_hundred(
                grown_in_each_bar(LEADS, "source"), grown_in_each_bar(FINISHED, "source"))},
            "locale", decimals=0, **DAYS),
    ),
    *line(8,
        by_hour("When people watch", grown_in_each_bar("relay_video_watched_total{SOURCE}")),
        by_hour("When leads come in", grown_in_each_bar(LEADS)),
    ),
    *line(5,
        table("By source", {"source": "Source"},
            {
                "Leads": _LEADS,
                "Started": _STARTED,
                "Finished": _FINISHED,
                "Watched to the end": share(_FINISHED, _STARTED),
                "Leads per 100 finished views": _per_hundred(_LEADS, _FINISHED),
            },
            decimals=0, units={"Watched to the end": "percentunit"}),
        stat("Last lead", f"1000 * max ({LAST_LEAD} > 0)", "dateTimeFromNow", noValue=NONE_YET),
        stat("Last view", f"1000 * max ({LAST_VIEW} > 0)", "dateTimeFromNow", noValue=NONE_YET),
        widths=(16, 4, 4),
    ),
]
# fmt: on

BOARD: Json = COMMON | {
    "title": "Engagement",
    "uid": "relay-engagement",
    "description": (
        "Leads and views of your videos: how many, when, where from, and where viewers stop."
    ),
    "time": {"from": "now-13d/d", "to": "now"},
    "templating": {"list": [*targets(hide=HIDDEN), source("relay_leads_captured_total")]},
    "annotations": {"list": []},
    "links": [other("Relay", "relay-operations", "For those who run the relay")],
    "panels": [*placed(PANELS)],
}
