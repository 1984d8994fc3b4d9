"""Headers of a queue message, and the template of its destination."""

from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from relay.core import sample_events
from relay.core.errors import InvalidRule, InvalidTemplate, Refused
from relay.core.event import KINDS, LEAD_CAPTURED, Event, rfc3339
from relay.core.routing import Route
from relay.core.sink import SinkSettings
from relay.outbound import cloudevents, watched
from relay.outbound.template import Escape, Template, escaping, is_template, literal_prefix

Format = Literal["raw", "cloudevents"]
"""Both leave the body byte for byte as received; `cloudevents` adds the binding's headers."""


def headers(event: Event, form: Format, *, prefix: str) -> dict[str, str]:
    """Return the headers by which a consumer routes and drops duplicates; values are any text.

    What a lead's person has watched is one more, if it is known.
    `prefix` is the CloudEvents binding's: `ce_` for Kafka, `ce-` for NATS, and so on.
    """
    return identity(event, form, prefix=prefix) | watched.headers(event, form, prefix=prefix)


def identity(event: Event, form: Format, *, prefix: str) -> dict[str, str]:
    """Return the same headers without what the person has watched."""
    own = {
        "relay-id": event.id,
        "relay-event": event.kind,
        "relay-source": event.source,
        "relay-received-at": rfc3339(event.received_ms),
    }
    if event.reconstructed:
        own["relay-reconstructed"] = "true"
    if form == "raw":
        return own
    named = cloudevents.attributes(event)
    return own | {f"{prefix}{name}": value for name, value in named.items()}


class MessageTarget:
    """A subject, stream or key: plain text, or a template over the event."""

    def __init__(self, source: str, *, key: str, escape: Escape = str) -> None:
        """`key` is the setting's name in errors; raises ValueError for an invalid template."""
        self.source = source
        self._key = key
        self._template: Template | None = None
        if not is_template(source):
            return
        try:
            self._template = Template(source, write=escaping(escape))
        except InvalidTemplate as error:
            raise ValueError(f"{key}: {error}") from None

    @property
    def is_template(self) -> bool:
        return self._template is not None

    def render(self, event: Event) -> str:
        """Raises InvalidTemplate if the template fails on this event."""
        return self.source if self._template is None else self._template.render(event)

    def resolve(self, event: Event) -> str:
        """Render for a delivery; raises Refused if the template fails on this event."""
        try:
            return self.render(event)
        except InvalidTemplate as error:
            reason = f"the template of `{self._key}` fails on this event: {error}"
        raise Refused(reason, unsent=True)

    def samples(self, settings: SinkSettings) -> tuple[str, ...]:
        """Render every sample that the sink would be sent; raises ValueError if that fails."""
        if self._template is None:
            return (self.source,)
        return tuple(sorted({self._try(sample) for sample in samples(settings)}))

    def _try(self, sample: Event) -> str:
        try:
            return self.render(sample)
        except InvalidTemplate as error:
            reason = f"{self._key}: {error} (tried with a sample of {sample.kind})"
        raise ValueError(reason)


class Reserved(NamedTuple):
    """Names that a broker reserves, so that no event may choose one."""

    prefix: str
    purpose: str
    until: str | None = None
    """The operator may choose one by fixed text up to this mark; with None, no one may."""


class Naming(msgspec.Struct, frozen=True):
    """Rules for the names of a broker's subjects, topics, queues or streams."""

    fits: Callable[[str], object]
    """Whether the form is right; length and reserved names are checked separately."""
    expected: str
    """The form in words."""
    max_bytes: int | None = None
    escape: Escape = str
    """Makes each value fit."""
    reserved: tuple[Reserved, ...] = ()
    """The first row that matches decides."""


class DestinationTemplate(MessageTarget):
    """A message's destination: a target whose result is a valid name, and not a reserved one."""

    def __init__(self, source: str, *, key: str, naming: Naming) -> None:
        """Raises ValueError for fixed text that is no valid name, and for an invalid template."""
        super().__init__(source, key=key, escape=naming.escape)
        self._naming = naming
        self._reserved = tuple(row.prefix for row in naming.reserved)
        self._fixed = literal_prefix(source)
        """The operator's own text before the first value of an event."""
        fault = None if self.is_template else self._fault(source)
        if fault is not None:
            raise ValueError(f"{key}: {fault}")

    def render(self, event: Event) -> str:
        """Raises InvalidTemplate also if the result is no valid name."""
        name = super().render(event)
        fault = self._fault(name) if self.is_template else None
        if fault is not None:
            raise InvalidTemplate(f"the result {fault}")
        return name

    def _fault(self, name: str) -> str | None:
        """Return the fault of a name, without repeating the name; None if it is valid."""
        naming = self._naming
        if naming.max_bytes is not None and len(name.encode()) > naming.max_bytes:
            return f"is longer than {naming.max_bytes} bytes"
        if not naming.fits(name):
            return f"does not fit: expected {naming.expected}" if name else "is empty"
        if not name.startswith(self._reserved):
            return None
        row = next(reserved for reserved in naming.reserved if name.startswith(reserved.prefix))
        operators_own = self._fixed[len(row.prefix) :]
        if row.until is not None and (not self.is_template or row.until in operators_own):
            return None
        return f"begins with {row.prefix}, which is reserved for {row.purpose}"


def optional(source: str | None, settings: SinkSettings, *, key: str) -> MessageTarget | None:
    """Return an optional target, tried on all samples; raises ValueError as its class does."""
    if source is None:
        return None
    target = MessageTarget(source, key=key)
    target.samples(settings)
    return target


def samples(settings: SinkSettings) -> Iterator[Event]:
    """Yield every sample that the sink would be sent, one with `enrich` also with a history."""
    try:
        route = Route(settings.name, events=settings.events, when=settings.when)
    except InvalidRule:  # the config reports it
        return
    for kind in KINDS:
        for sample in sample_events.series(kind):
            if route.evaluate(sample).outcome != "takes":
                continue
            yield sample
            if settings.enrich and sample.kind == LEAD_CAPTURED:
                yield replace(sample, watch_history=sample_events.WATCHED)
