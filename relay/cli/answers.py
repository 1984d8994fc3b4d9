"""The running relay's answers: decoded, and distinguished from those of other servers."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, TypeVar

import httpx
import msgspec

from relay.core.errors import ApiError, Fault

VERSION = version("relay")

T = TypeVar("T")

_UNKNOWN_OPERATION = frozenset({httpx.codes.NOT_FOUND, httpx.codes.METHOD_NOT_ALLOWED})


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an answer came from."""

    address: str
    version: str

    @property
    def versions(self) -> str:
        return (
            f"this command is of version {VERSION}, the relay at {self.address} of {self.version}"
        )

    def read(self, text: str | bytes) -> Any:
        """Decode a JSON object; raises ApiError for anything else."""
        try:
            document = json.loads(text, object_pairs_hook=lambda pairs: Document(pairs, self))
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, Document):
            raise ApiError(f"the answer is not understood: {self.versions}")
        return document


class Document(dict[str, Any]):
    """A JSON object of an answer; raises ApiError for a key that it lacks."""

    def __init__(self, pairs: Iterable[tuple[str, Any]], origin: Origin) -> None:
        super().__init__(pairs)
        self._origin = origin

    def convert(self, kind: type[T]) -> T:
        """Make a typed value of it; raises ApiError for one of another shape."""
        try:
            return msgspec.convert(self, kind)
        except msgspec.ValidationError as error:
            raise ApiError(
                f"the answer is not understood ({error}): {self._origin.versions}"
            ) from None

    def __missing__(self, key: str) -> Any:
        raise ApiError(f"the answer has no `{key}`: {self._origin.versions}")


def origin(response: httpx.Response) -> Origin:
    """Return the relay that has answered; raises ApiError for anything else."""
    address = response.url.netloc.decode()
    relay_version = response.headers.get("relay-version")
    if relay_version is None:
        kind = response.headers.get("content-type", "no content type")
        raise ApiError(
            f"{address} is not the admin listener of a relay: it answers {response.status_code}, "
            f"{kind}; check the address"
        )
    return Origin(address, relay_version)


class _Problem(msgspec.Struct):
    """Problem details (RFC 9457), as far as they are shown."""

    title: str = ""
    detail: str = ""
    faults: tuple[Fault, ...] = ()


def refusal(response: httpx.Response, relay: Origin) -> ApiError:
    """Make the error of an answer that is read and is no success."""
    try:
        problem = msgspec.json.decode(response.content, type=_Problem)
    except (msgspec.DecodeError, UnicodeDecodeError):
        problem = _Problem()
    if response.status_code in _UNKNOWN_OPERATION and not problem.detail:
        operation = f"{response.request.method} {response.url.path}"
        return ApiError(f"the relay does not know {operation}: {relay.versions}")
    text = problem.detail or problem.title or f"the relay answers {response.status_code}"
    error = ApiError(text, faults=problem.faults)
    if relay.version != VERSION:
        error.add_note(relay.versions)
    return error
