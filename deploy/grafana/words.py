"""What those who own the videos call what the relay counts."""

from deploy.grafana import queries

LEADS = queries.of_source("relay_leads_captured_total")
STEPS = {
    "started": "Started",
    "25%": "Watched 25 %",
    "50%": "Watched 50 %",
    "75%": "Watched 75 %",
    "completed": "Finished",
}
"""The milestones in the order in which a viewer passes them, in the owners' words."""

NONE_YET = "none yet"


def watched(milestone: str) -> str:
    return queries.of_source("relay_video_watched_total", f'milestone="{milestone}"')


def per_hundred(part: str, of: str) -> str:
    return f"100 * {queries.share(part, of)}"
