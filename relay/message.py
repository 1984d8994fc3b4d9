"""What a queue sink puts beside the body, and where the message goes (pure)."""

from collections.abc import Iterator
from typing import Literal

from relay import cloudevents, samples
from relay.errors import InvalidRule, InvalidTemplate, Refused
from relay.event import KINDS, Event
from relay.routing import Route
from relay.sink import SinkSettings
from relay.template import Escape, Template, escaping

Format = Literal["raw", "cloudevents"]
"""Both leave the body byte for byte as received; `cloudevents` adds the binding's headers."""


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
        if not any(mark in source for mark in ("{{", "{%", "{#")):
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
        yield from (each for each in samples.series(kind) if route.judge(each).outcome == "takes")
