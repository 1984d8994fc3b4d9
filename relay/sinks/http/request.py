"""What an `http` sink sends of an event: method, URL, the operator's headers and the body."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import msgspec

from relay.core.config_values import SecretTemplate
from relay.core.errors import InvalidTemplate, Refused
from relay.core.event import Event
from relay.core.large_bodies import BodyWorker
from relay.core.setting_errors import Faults
from relay.outbound import tls
from relay.outbound.http.client import HttpEndpoint, masked
from relay.outbound.message import samples
from relay.outbound.template import Rendering
from relay.sinks.http.body import FormBody, JsonBody, unresolved
from relay.sinks.http.own_headers import Headers, OwnHeaders, unfilled
from relay.sinks.http.target import TargetTemplate, endpoint_at

_RECEIVED = "application/json"
"""Of the bytes as they were received."""

_HIDDEN_WORDS = 16
"""Words of a filled header that are masked by themselves too, such as a token behind its scheme.

Each costs a search of the answer, and an event may hold thousands.
"""

_worker = BodyWorker("http")
"""One for the templates of all sinks."""


class RequestSettings(tls.TlsSettings, frozen=True, kw_only=True):
    """Keys of an `http` sink that describe its requests."""

    url: SecretTemplate
    """Its path and its query may be a template."""
    method: Literal["POST", "PUT", "PATCH"] = "POST"
    headers: dict[str, SecretTemplate] = msgspec.field(default_factory=dict)
    """Sent with every request, and masked wherever they would show."""
    body: dict[str, Any] | str | None = None
    """The JSON to send in place of the received bytes: a table with templates, or a text."""
    form: dict[str, Any] | None = None
    """The form to send in place of them."""

    def warnings(self) -> Sequence[str]:
        return [
            *_personal_url(self),
            *unfilled(self.headers),
            *unresolved(self.body, "body"),
            *unresolved(self.form, "form"),
        ]


class EventRequest(NamedTuple):
    """One event's request, without the headers that the relay adds."""

    endpoint: HttpEndpoint
    headers: Headers
    """Those from templates."""
    body: bytes


class RequestTemplate:
    """Makes the requests of one sink."""

    def __init__(self, settings: RequestSettings) -> None:
        """Raises ValueError and InvalidTemplate as `Faults` does, with the keys."""
        faults = Faults()
        self._body: JsonBody | FormBody | None = None
        with faults.collect():
            self._target = TargetTemplate.of(settings.url)
        with faults.collect():
            self.headers = OwnHeaders(settings.headers)
        with faults.collect():
            self._body = _body(settings)
        faults.raise_all()
        self.method = settings.method
        self.content_type = _RECEIVED if self._body is None else self._body.content_type
        self.is_fixed = not (self._body or self._target or self.headers.is_template)
        """Whether requests differ in the received bytes only."""

    @property
    def has_fixed_url(self) -> bool:
        return self._target is None

    async def of(self, event: Event, endpoint: HttpEndpoint) -> EventRequest:
        """Make an event's request; raises Refused where a template fails on it."""
        if self.is_fixed:
            return EventRequest(endpoint, [], event.body)
        try:
            return await _worker.run(len(event.body), partial(self.fill, event, endpoint))
        except InvalidTemplate as error:
            reason = f"the template fails on this event: {error}"
        raise Refused(reason, unsent=True)

    def fill(self, event: Event, endpoint: HttpEndpoint) -> EventRequest:
        """Make an event's request; raises InvalidTemplate where a template fails on it."""
        rendering = Rendering(event)
        if self._target is not None:
            endpoint = endpoint_at(endpoint, self._target.fill(rendering))
        headers = self.headers.fill(rendering)
        if headers:
            endpoint = endpoint.hiding(*_repeatable(value for _, value in headers))
        body = event.body if self._body is None else self._body.fill(rendering)
        return EventRequest(endpoint, headers, body)

    def try_samples(self, settings: RequestSettings) -> None:
        """Fill in each sample that the sink takes; raises the failures as `Faults` does."""
        faults, tried = Faults(), () if self.is_fixed else tuple(samples(settings))
        for part in (self._target, self.headers, self._body):
            with faults.collect():
                _try(part, tried)
        faults.raise_all()

    def shown_url(self, event: Event, endpoint: HttpEndpoint) -> str:
        """Return the URL with all masked that may be secret or personal."""
        target = self._target
        shown = masked(endpoint.url.raw_path_qs) if target is None else target.shown(event)
        return f"{endpoint.url.scheme}://{endpoint.authority}{shown}"

    def for_check(self, settings: RequestSettings, endpoint: HttpEndpoint) -> HttpEndpoint:
        """Return the endpoint to which a check goes: that of a sample, if events choose it."""
        sample = None if self._target is None else next(samples(settings), None)
        if self._target is None or sample is None:
            return endpoint
        return endpoint_at(endpoint, self._target.fill(Rendering(sample)))


def _repeatable(values: Iterable[str]) -> Iterator[str]:
    """Yield the texts of headers that an answer may repeat."""
    for value in values:
        yield from (value, *value.split(maxsplit=_HIDDEN_WORDS))


def _body(settings: RequestSettings) -> JsonBody | FormBody | None:
    if settings.body is not None and settings.form is not None:
        raise ValueError("form: does not go with body, for a request has one of them")
    if settings.form is not None:
        return FormBody(settings.form)
    return None if settings.body is None else JsonBody(settings.body)


def _try(
    part: TargetTemplate | OwnHeaders | JsonBody | FormBody | None, tried: Iterable[Event]
) -> None:
    for sample in tried:
        try:
            _ = part and part.fill(Rendering(sample))
        except InvalidTemplate as error:
            raise InvalidTemplate(f"{error} (tried with a sample of {sample.kind})") from None


def _personal_url(settings: RequestSettings) -> Iterator[str]:
    target = TargetTemplate.of(settings.url)
    if target is not None and any(map(target.names_a_person, samples(settings))):
        yield (
            "url: holds an e-mail address once it is filled in, which the logs of servers and "
            "proxies keep: put it into the body, and an id such as data.id into the URL"
        )
