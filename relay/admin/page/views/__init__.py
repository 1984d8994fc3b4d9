"""The views: a module each, which exports its `SECTION`."""

from relay.admin.page.views import dead_letters, events, now, sinks

__all__ = ["SECTIONS"]

SECTIONS = (now.SECTION, events.SECTION, dead_letters.SECTION, sinks.SECTION)
"""In the order of the navigation."""
