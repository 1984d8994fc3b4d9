"""The views: a module each, which exports its `SECTION`."""

from relay.admin.page.views import (
    audience,
    changes,
    config,
    dead_letters,
    events,
    now,
    people,
    sinks,
)

__all__ = ["SECTIONS"]

SECTIONS = (
    now.SECTION,
    events.SECTION,
    dead_letters.SECTION,
    sinks.SECTION,
    people.SECTION,
    audience.SECTION,
    changes.SECTION,
    config.SECTION,
)
"""In the order of the navigation."""
