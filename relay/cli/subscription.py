"""The kinds of events that a source's sinks want, and those that its endpoint receives."""

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import NamedTuple

from relay.cli.output import safe
from relay.config import Config
from relay.core.event import SUBSCRIBABLE
from relay.core.setting_errors import suggestion
from relay.video_service.api.records import Webhook

ALL = "all"


class WantedKinds(NamedTuple):
    """Kinds of events; with `everything`, also those that the service adds later."""

    kinds: tuple[str, ...]
    everything: bool

    @property
    def events(self) -> tuple[str, ...]:
        """As the API takes it: an empty list means all events."""
        return () if self.everything else self.kinds

    def lacking(self, webhook: Webhook) -> tuple[str, ...]:
        """Return the kinds that an endpoint does not receive."""
        if not webhook.events:
            return ()
        return tuple(kind for kind in self.kinds if kind not in webhook.events)


def wanted(config: Config, source: str) -> WantedKinds:
    """Return the kinds of a source that at least one sink takes."""
    globs = {
        glob
        for sink in config.sinks
        if sink.sources is None or source in sink.sources
        for glob in sink.events
    }
    kinds = tuple(kind for kind in SUBSCRIBABLE if any(fnmatchcase(kind, glob) for glob in globs))
    return WantedKinds(kinds, everything="*" in globs)


def listed(events: Iterable[str] | None) -> str:
    """Describe an endpoint's events; None if an answer did not say them."""
    if events is None:
        return "not said"
    return ", ".join(events) or "all events"


def parse_events(text: str) -> tuple[str, ...]:
    """Parse `lead.captured,video.watched`, or `all`, as the API takes it; raises ValueError."""
    kinds = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if kinds == (ALL,):
        return ()
    if ALL in kinds:
        raise ValueError(f"`{ALL}` excludes other kinds")
    for kind in kinds:
        if kind not in SUBSCRIBABLE:
            hint = suggestion(kind, (*SUBSCRIBABLE, ALL)) or "."
            expected = ", ".join(SUBSCRIBABLE)
            raise ValueError(f'"{safe(kind)}" is no kind{hint} Expected `all`, or of: {expected}')
    return kinds
