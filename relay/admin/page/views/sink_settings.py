"""A sink's settings without secrets."""

from relay.admin.page import settings
from relay.admin.page.settings import Setting
from relay.core.sink import SinkSettings

_OF_ROUTE = frozenset({"name", "type", "events", "sources", "when", "ordered"})
"""Keys that the view shows elsewhere."""


def settings_of(sink: SinkSettings) -> list[Setting]:
    """List the keys beside the route's, given ones first; no text holds a secret."""
    found = [each for each in settings.settings_of(sink) if each.key not in _OF_ROUTE]
    return sorted(found, key=lambda each: each.is_default)
