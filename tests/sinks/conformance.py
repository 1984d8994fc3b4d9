"""What a sink type has to bring so that it can be judged by the facts in `test_conformance.py`."""

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, Self, runtime_checkable

import msgspec
import pytest
from msgspec.structs import replace

from relay import sinks
from relay.core import config_values
from relay.core.clock import Clock
from relay.core.errors import Misconfigured, SinkError
from relay.core.event import Event
from relay.core.sink import Sink, SinkSettings
from tests.brokers.authority import Authority
from tests.conftest import ManualClock
from tests.stub_server import DEADLINE_S


@dataclass(frozen=True)
class Message:
    """One message at the destination: the event id as that system carries it, and its content."""

    id: str
    content: bytes
    watched: str | None = None
    """What a person has watched, in the place that the system has for such things."""


def watched_in(beside: Mapping[str, Any]) -> str | None:
    """Find it among a message's headers, or whatever stands beside a body, by either format."""
    found = [value for name, value in beside.items() if _WATCHED.fullmatch(name)]
    assert len(found) <= 1
    return found[0] if found else None


_WATCHED = re.compile(r"relay-watched|watched|\w*[-_]?relaywatched")


async def error_of(sink: Sink, event: Event) -> SinkError:
    """Send an event, which has to fail in time."""
    with pytest.raises(SinkError) as caught:
        async with asyncio.timeout(DEADLINE_S):
            await sink.send(event)
    return caught.value


@runtime_checkable
class Throttling(Protocol):
    """A destination that can ask for a slower pace."""

    def throttle(self, retry_after: str) -> None:
        """Ask for it from now on, with this Retry-After."""


@runtime_checkable
class Connected(Protocol):
    """A destination that counts its connections."""

    def connections(self) -> int:
        """Return how many are open."""
        ...

    def contacts(self) -> int:
        """Return how many there have been."""
        ...


class Variety(NamedTuple):
    """Events that become of different things in one batch, and the keys with which they do."""

    table: Mapping[str, Any]
    good: Event
    bad: Event
    """Fails at the destination, for a fault of its own."""
    unfit: Event
    """Is refused before it is sent."""
    error: type[SinkError] = Misconfigured
    """Of the bad one."""


def by_source(event: Event, key: str, *, good: str, bad: str, unfit: str) -> Variety:
    """Let an event's source say where it goes."""
    events = [replace(event, source=source) for source in (good, bad, unfit)]
    return Variety({key: "{{ source }}"}, events[0], events[1], events[2])


@runtime_checkable
class Varying(Protocol):
    """A destination that does different things with the events of one batch."""

    async def vary(self, event: Event) -> Variety:
        """Prepare it, and vary an event for it."""
        ...


@runtime_checkable
class Limited(Protocol):
    """A destination that can be told to refuse large bodies."""

    async def limit(self) -> int:
        """From now on refuse bodies of more bytes than this."""
        ...


CERTIFICATES_ASKED_FOR = (
    "a_required_client_certificate_that_is_missing_is_reported_every_time",
    "a_client_certificate_of_another_authority_is_misconfigured",
)
"""Facts of TLS that need the destination's own reason."""


@runtime_checkable
class Secured(Protocol):
    """A destination that can demand TLS and a certificate."""

    peer: ClassVar[str]
    """What errors call it."""

    async def secure(self, folder: Path) -> tuple[Authority, Mapping[str, Any]]:
        """Show a certificate of an authority and demand one of it; return the keys that lead there.

        The authority may keep its files in the folder.
        """
        ...

    def without_tls(self) -> Mapping[str, Any]:
        """Return the keys that ask for TLS where there is none."""
        ...


class Harness(ABC):
    """A sink type with a real destination, which takes everything once entered."""

    sink_type: ClassVar[str]
    failures: ClassVar[Mapping[str, type[SinkError]]]
    """Ways in which the destination can fail each event, and the error that must follow."""
    reasons: ClassVar[Mapping[str, str]] = {}
    """What errors begin with, by some of the same ways."""
    bare: ClassVar[Mapping[str, Any]]
    """Keys with which a sink can be built without a destination."""
    shown: ClassVar[Mapping[str, Any]] = {}
    """Where a sink of `bare` says that a lead goes."""
    faults: ClassVar[Sequence[tuple[Mapping[str, Any], str]]] = ()
    """Changes of `bare` that are refused, each with a pattern of what the refusal begins with."""
    down: ClassVar[str | None] = "nobody listens"
    """The failure in which nobody listens."""
    wrong: ClassVar[Mapping[str, object]] = {}
    """Values that keys of the type must not take, if 1 is not wrong enough."""
    secrets: ClassVar[tuple[str, ...]] = ()
    """Texts in the settings that may show nowhere; a failing destination repeats them all."""
    raw: ClassVar[bool] = True
    """True where the received body is delivered byte for byte."""
    deviations: ClassVar[Mapping[str, str]] = {}
    """Facts that cannot hold for the type, and why."""

    @abstractmethod
    async def __aenter__(self) -> Self: ...

    @abstractmethod
    async def __aexit__(self, *_: object) -> None: ...

    @abstractmethod
    def table(self) -> dict[str, Any]:
        """Give the keys of a `[[sink]]` table beyond name and type, as TOML would."""

    @abstractmethod
    def messages(self) -> list[Message]:
        """List everything that has arrived."""

    @abstractmethod
    async def fail(self, how: str) -> None:
        """From now on fail every event in a way that `failures` names."""

    @abstractmethod
    async def hang(self) -> None:
        """From now on take no event and say nothing."""

    @abstractmethod
    async def recover(self) -> None:
        """Take everything again."""

    def wrong_values(self) -> dict[str, object]:
        """Return a wrong value for each key that is not of every type, and for `concurrency`."""
        own = set(sinks.load(self.sink_type).Settings.__struct_fields__)
        own -= set(SinkSettings.__struct_fields__)
        return {**dict.fromkeys(own, 1), "concurrency": "many", **self.wrong}

    def settings(self, **changed: object) -> SinkSettings:
        """Decode the table as the config does."""
        table = {"name": "tested", "type": self.sink_type, **self.table(), **changed}
        kind = sinks.load(self.sink_type).Settings
        return msgspec.convert(table, kind, dec_hook=config_values.decode)

    def build(self, clock: Clock, **changed: object) -> Sink:
        return sinks.load(self.sink_type).build(self.settings(**changed), clock)

    def all_of(self, kind: type[SinkError]) -> list[str]:
        """Name the failures that have to come out as `kind`."""
        return [how for how, outcome in self.failures.items() if outcome is kind]


def built(type_: str, clock: Clock | None = None, **table: object) -> Any:
    """Build a sink as the config does."""
    module = sinks.load(type_)
    full = {"name": "bus", "type": type_, **table}
    settings = msgspec.convert(full, module.Settings, dec_hook=config_values.decode)
    return module.build(settings, clock or ManualClock())
