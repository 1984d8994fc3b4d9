"""The URL of a request: fixed, or with a path and a query that each event fills in."""

import re
from collections.abc import Iterator
from typing import Self
from urllib.parse import quote, unquote

import httpx

from relay.core.config_values import Secret
from relay.core.errors import InvalidTemplate
from relay.core.event import Event
from relay.outbound.http.client import HttpEndpoint, masked
from relay.outbound.template import Pieces, Rendering, Template, Value, is_template
from relay.outbound.template_places import in_url

_ORIGIN = re.compile(r"[^/?#]*://[^/?#]*")
_WHOLE_TEMPLATE = re.compile(r"\{\{.*?\}\}|\{%.*?%\}", re.DOTALL)


def fixed_part(url: Secret) -> Secret:
    """Return the part of a URL that no event changes: all of it, or all before the path.

    Raises ValueError for a template before the path: no event chooses whom the relay talks to.
    """
    origin, target = _split(url.reveal())
    user, _, host = origin.rpartition("@")
    if is_template(host) or _WHOLE_TEMPLATE.search(user):
        raise ValueError("url: expected templates in the path and the query only")
    return Secret(origin) if origin and is_template(target) else url


def _split(url: str) -> tuple[str, str]:
    origin = _ORIGIN.match(url)
    return ("", url) if origin is None else (origin[0], url[origin.end() :])


class TargetTemplate:
    """Path and query of a URL, in which every value is percent-encoded as a whole."""

    def __init__(self, target: str) -> None:
        """Raises InvalidTemplate."""
        try:
            self._template = Template(target, write=in_url)
        except InvalidTemplate as error:
            raise InvalidTemplate(f"url: {error}") from None
        self._shown = Template(target, write=self._masked)

    @classmethod
    def of(cls, url: Secret) -> Self | None:
        """Compile a URL; None for a fixed one."""
        target = _split(url.reveal())[1]
        return cls(target) if is_template(target) else None

    def fill(self, rendering: Rendering) -> str:
        """Return path and query for an event; raises InvalidTemplate, with the key."""
        try:
            return self._template.fill(rendering)
        except InvalidTemplate as error:
            raise InvalidTemplate(f"url: {error}") from None

    def shown(self, event: Event) -> str:
        """Return the same with all masked that may be secret or personal."""
        return self._shown.render(event)

    def names_a_person(self, event: Event) -> bool:
        """Whether the e-mail address of the event's person would stand in the URL."""
        address = event.address()
        target = unquote(self.fill(Rendering(event)))
        return address is not None and address.casefold() in target.casefold()

    def _masked(self, pieces: Pieces) -> Iterator[str]:
        for piece in pieces:
            if not isinstance(piece, Value):
                yield masked(piece)
            else:
                yield "***" if self._template.is_personal else quote(piece, safe="")


def endpoint_at(endpoint: HttpEndpoint, target: str) -> HttpEndpoint:
    """Return the endpoint of a filled target; raises InvalidTemplate if it is none."""
    try:
        return endpoint.at(target)
    except httpx.InvalidURL:  # its text repeats a part of it
        pass
    raise InvalidTemplate("url: what is written is too long, or holds a control character")
