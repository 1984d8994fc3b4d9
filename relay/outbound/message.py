"""What a queue sink puts beside the body, and where the message goes (pure)."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from relay.core import sample_events
from relay.core.errors import InvalidRule, InvalidTemplate, Refused
from relay.core.event import KINDS, Event
from relay.core.routing import Route
from relay.core.sink import SinkSettings
from relay.outbound import cloudevents
from relay.outbound.template import Escape, Template, escaping

Format = Literal["raw", "cloudevents"]
"""Both leave the body byte for byte as received; `cloudevents` adds the binding's headers."""

_MARK = re.compile(r"\{[{%#]")


def headers(event: Event, form: Format, *, prefix: str) -> dict[str, str]:
    """Name what a consumer needs to route and to drop duplicates; values are any text.

    `prefix` is that of the CloudEvents binding: `ce_` for Kafka, `ce-` for NATS, and so on.
    """
    own = {
        "relay-id": event.id,
        "relay-event": event.kind,
        "relay-source": event.source,
        "relay-received-at": cloudevents.rfc3339(event.received_ms),
    }
    if form == "raw":
        return own
    named = cloudevents.attributes(event)
    return own | {f"{prefix}{name}": value for name, value in named.items()}


class Target:
    """A subject, a stream, a key: plain text, which costs nothing, or a template over the event."""

    def __init__(self, source: str, *, key: str, escape: Escape = str) -> None:
        """`key` is the setting's name in errors; raises ValueError where it is no template."""
        self.source = source
        self._key = key
        self._template: Template | None = None
        if _MARK.search(source) is None:
            return
        try:
            self._template = Template(source, write=escaping(escape))
        except InvalidTemplate as error:
            raise ValueError(f"{key}: {error}") from None

    @property
    def is_template(self) -> bool:
        return self._template is not None

    def render(self, event: Event) -> str:
        """Raises InvalidTemplate where the template fails on this event."""
        return self.source if self._template is None else self._template.render(event)

    def resolve(self, event: Event) -> str:
        """Render for a delivery; raises Refused where the template fails on this event."""
        try:
            return self.render(event)
        except InvalidTemplate as error:
            reason = f"the template of `{self._key}` fails on this event: {error}"
        raise Refused(reason)

    def samples(self, settings: SinkSettings) -> tuple[str, ...]:
        """Render every sample that the sink would be sent; raises ValueError where that fails."""
        if self._template is None:
            return (self.source,)
        return tuple(sorted({self._try(sample) for sample in _taken(settings)}))

    def _try(self, sample: Event) -> str:
        try:
            return self.render(sample)
        except InvalidTemplate as error:
            reason = f"{self._key}: {error} (tried with a sample of {sample.kind})"
        raise ValueError(reason)


class Reserved(NamedTuple):
    """Names that a broker gives a meaning of their own, so that no event may choose one."""

    prefix: str
    meaning: str
    until: str | None = None
    """The operator may choose one by fixed text that goes on to this mark; None for nobody."""


@dataclass(frozen=True)
class Naming:
    """Names of a broker's subjects, topics, queues or streams, and how to tell them from others."""

    fits: Callable[[str], object]
    """Whether it is of the right form; length and reserved names are judged apart."""
    expected: str
    """The form in words."""
    max_bytes: int | None = None
    escape: Escape = str
    """Makes each value fit."""
    reserved: tuple[Reserved, ...] = ()
    """The first row that fits decides."""


class DestinationTemplate(Target):
    """Where a message goes: a target that is a name to the broker, and not a reserved one."""

    def __init__(self, source: str, *, key: str, naming: Naming) -> None:
        """Raises ValueError for fixed text that cannot be such a name, and for a bad template."""
        super().__init__(source, key=key, escape=naming.escape)
        self._naming = naming
        self._reserved = tuple(row.prefix for row in naming.reserved)
        self._fixed = _MARK.split(source, maxsplit=1)[0]
        """The operator's own words before anything that an event may fill."""
        fault = None if self.is_template else self._fault(source)
        if fault is not None:
            raise ValueError(f"{key}: {fault}")

    def render(self, event: Event) -> str:
        """Raises InvalidTemplate also where the result cannot be such a name."""
        name = super().render(event)
        fault = self._fault(name) if self.is_template else None
        if fault is not None:
            raise InvalidTemplate(f"the result {fault}")
        return name

    def _fault(self, name: str) -> str | None:
        """Say what is wrong with a name, without repeating it."""
        naming = self._naming
        if naming.max_bytes is not None and len(name.encode()) > naming.max_bytes:
            return f"is longer than {naming.max_bytes} bytes"
        if not naming.fits(name):
            return f"does not fit: expected {naming.expected}" if name else "is empty"
        if not name.startswith(self._reserved):
            return None
        row = next(reserved for reserved in naming.reserved if name.startswith(reserved.prefix))
        if self._is_chosen_by_operator(row):
            return None
        return f"begins with {row.prefix}, which is reserved for {row.meaning}"

    def _is_chosen_by_operator(self, row: Reserved) -> bool:
        if row.until is None:
            return False
        return not self.is_template or row.until in self._fixed[len(row.prefix) :]


def optional(source: str | None, settings: SinkSettings, *, key: str) -> Target | None:
    """A target that may be left out, tried on all samples; raises ValueError as these do."""
    if source is None:
        return None
    target = Target(source, key=key)
    target.samples(settings)
    return target


def _taken(settings: SinkSettings) -> Iterator[Event]:
    try:
        route = Route(settings.name, events=settings.events, when=settings.when)
    except InvalidRule:  # which the config reports by itself
        return
    for kind in KINDS:
        yield from (
            sample
            for sample in sample_events.series(kind)
            if route.evaluate(sample).outcome == "takes"
        )
