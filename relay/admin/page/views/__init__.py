"""The views: a folder for each entry of the navigation, whose module `section` declares it."""

from relay.admin.page.views.audience import section as audience
from relay.admin.page.views.changes import section as changes
from relay.admin.page.views.config import section as config
from relay.admin.page.views.dead_letters import section as dead_letters
from relay.admin.page.views.events import section as events
from relay.admin.page.views.now import section as now
from relay.admin.page.views.people import section as people
from relay.admin.page.views.sinks import section as sinks

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
