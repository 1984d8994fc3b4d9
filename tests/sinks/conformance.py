"""What a sink type has to bring so that it can be judged by the facts in `test_conformance.py`."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import msgspec

from relay import sinks
from relay.core import config_values
from relay.core.clock import Clock
from relay.core.errors import SinkError
from relay.core.sink import Sink, SinkSettings


@dataclass(frozen=True)
class Message:
    """One message at the far end: the event id as that system carries it, and what came with it."""

    id: str
    content: bytes


class Harness(ABC):
    """A sink type with a real far end; entered, the far end takes everything."""

    sink_type: ClassVar[str]
    failures: ClassVar[Mapping[str, type[SinkError]]]
    """What the far end can be told to do to each event, and the error that has to come of it."""
    down: ClassVar[str | None]
    """The failure in which nobody listens."""
    wrong: ClassVar[Mapping[str, object]]
    """For each of the type's own keys a value that it must not take."""
    secrets: ClassVar[tuple[str, ...]] = ()
    """Texts in the settings that may show nowhere; a failing far end repeats them all."""
    raw: ClassVar[bool]
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

    def throttle(self, retry_after: str) -> None:
        """From now on ask for a slower pace with this Retry-After."""
        raise NotImplementedError

    def connections(self) -> int:
        """Count the connections that are open."""
        raise NotImplementedError

    def contacts(self) -> int:
        """Count the connections that there have been."""
        raise NotImplementedError

    def settings(self, **changed: object) -> SinkSettings:
        """Decode the table as the config does."""
        table = {"name": "tested", "type": self.sink_type, **self.table(), **changed}
        kind = sinks.load(self.sink_type).Settings
        return msgspec.convert(table, kind, dec_hook=config_values.decode)

    def build(self, clock: Clock) -> Sink:
        return sinks.load(self.sink_type).build(self.settings(), clock)

    def all_of(self, kind: type[SinkError]) -> list[str]:
        """Name the failures that have to come out as `kind`."""
        return [how for how, outcome in self.failures.items() if outcome is kind]
