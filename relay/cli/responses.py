"""Decodes a relay's responses, and detects responses of other servers."""

import json
import time
from collections.abc import Iterable
from typing import Any, TypeVar

import httpx
import msgspec

from relay import __version__
from relay.core.errors import AdminApiError, Fault

VERSION = __version__

T = TypeVar("T")

_UNKNOWN_OPERATION = frozenset({httpx.codes.NOT_FOUND, httpx.codes.METHOD_NOT_ALLOWED})


class Origin(msgspec.Struct, frozen=True):
    """The relay that sent a response."""

    address: str
    version: str
    now_ms: int
    """Time of the response by the relay's clock, by which all of its times go."""

    @property
    def versions(self) -> str:
        relay = f"the relay at {self.address} has {self.version}"
        advice = "" if self.version == VERSION else "; use the command of the relay's version"
        return f"this command has version {VERSION}, {relay}{advice}"

    def read(self, text: str | bytes) -> Any:
        """Decode a JSON object; raises AdminApiError."""
        try:
            document = json.loads(text, object_pairs_hook=lambda pairs: Document(pairs, self))
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, Document):
            raise AdminApiError(f"cannot read the response: {self.versions}")
        return document


class Document(dict[str, Any]):
    """A JSON object of a response; a missing key raises AdminApiError."""

    def __init__(self, pairs: Iterable[tuple[str, Any]], origin: Origin) -> None:
        super().__init__(pairs)
        self._origin = origin

    @property
    def now_ms(self) -> int:
        """Time of the response by the relay's clock."""
        return self._origin.now_ms

    def convert(self, kind: type[T]) -> T:
        """Convert it to a typed value; raises AdminApiError."""
        try:
            return msgspec.convert(self, kind)
        except msgspec.ValidationError as error:
            raise AdminApiError(
                f"cannot read the response ({error}): {self._origin.versions}"
            ) from None

    def __missing__(self, key: str) -> Any:
        raise AdminApiError(f"the response has no `{key}`: {self._origin.versions}")


def origin(response: httpx.Response) -> Origin:
    """Return the relay that sent a response; raises AdminApiError for another server."""
    address = response.url.netloc.decode()
    relay_version = response.headers.get("relay-version")
    if relay_version is None:
        kind = response.headers.get("content-type", "no content type")
        raise AdminApiError(
            f"{address} is not the admin listener of a relay: it returned {response.status_code}, "
            f"{kind}; check the address"
        )
    # A relay of an older version does not say.
    now_ms = response.headers.get("relay-now") or time.time_ns() // 1_000_000
    return Origin(address, relay_version, int(now_ms))


class _Problem(msgspec.Struct):
    """Problem details (RFC 9457), reduced to the fields that are shown."""

    title: str = ""
    detail: str = ""
    faults: tuple[Fault, ...] = ()


def refusal(response: httpx.Response, relay: Origin) -> AdminApiError:
    """Create the error for an unsuccessful response whose body is read."""
    try:
        problem = msgspec.json.decode(response.content, type=_Problem)
    except (msgspec.DecodeError, UnicodeDecodeError):
        problem = _Problem()
    if response.status_code in _UNKNOWN_OPERATION and not problem.detail:
        operation = f"{response.request.method} {response.url.path}"
        return AdminApiError(f"the relay does not support {operation}: {relay.versions}")
    text = problem.detail or problem.title or f"the relay returned {response.status_code}"
    error = AdminApiError(text, faults=problem.faults)
    if relay.version != VERSION:
        error.add_note(relay.versions)
    return error
