"""What a sink is: the contract that every file in `relay/sinks/` fulfils.

A sink's file holds two names: `Settings`, its table in the config, and `build`, which makes it.
The file's name is the sink's `type`; nothing else names it.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

import msgspec

from relay.core.clock import Clock
from relay.core.config_values import Duration, Rate
from relay.core.delivery import SinkResponse
from relay.core.event import Event
from relay.core.retry import RetryPolicy
from relay.core.routing import Ordered


class SinkSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every `[[sink]]` table has; a sink's own `Settings` adds to it or changes a default."""

    destination: ClassVar[str | None] = None
    """The key whose template chooses where at the far end each event goes."""

    name: str
    type: str
    events: tuple[str, ...] = ("*",)
    sources: tuple[str, ...] | None = None
    when: str | None = None
    ordered: Ordered | None = None
    """Events of one video or one viewer go one after another; those of others are not held up."""
    concurrency: int = 1
    rate: Rate | None = None
    timeout: Duration = Duration.parse("10s")
    retry: RetryPolicy = RetryPolicy()

    def slots(self) -> int:
        """How many events are sent at once; a sink that gathers them takes more."""
        return self.concurrency

    def batch(self) -> int:
        """How many of them go out together at most, so that there are slots for some batches."""
        return 1

    def pace(self) -> Rate | None:
        """How often `send` is called; None for a sink that keeps its rate by itself."""
        return self.rate

    def patience(self) -> Duration:
        """How long one `send` may take; longer where it waits for others."""
        return self.timeout


class BatchSettings(SinkSettings, frozen=True, kw_only=True):
    """What a `BatchSink` has: while one batch is on its way, the next one is made."""

    def batch(self) -> int:
        return max(1, self.concurrency // 2)

    def patience(self) -> Duration:
        # The sink keeps `timeout` by itself, because it knows which of a batch have got through.
        return Duration(self.timeout + 1000)


class Sink(Protocol):
    """One configured far end.

    The dispatcher calls `send` for up to `slots()` events at once, each for as long as
    `patience()`, and may cancel it at any time.
    A sink neither logs nor counts, and no error of its may carry a secret.
    """

    async def send(self, event: Event) -> SinkResponse:
        """Return once the far end has confirmed that it has the event.

        Raises `Temporary` (try this event again), `Refused` (this event will never be taken) or
        `Misconfigured` (nothing will be taken until someone acts).
        """
        ...

    async def check(self) -> str | None:
        """Reach the far end without delivering an event; raises as `send` does.

        Return what there is to say of its answer, beyond that it was reached.
        """
        ...

    def render(self, event: Event) -> dict[str, Any]:
        """What `send` would hand over, as JSON values; secrets in it are masked."""
        ...

    async def close(self) -> None:
        """Let every connection go; may be called twice."""
        ...


Outcomes = Sequence[SinkResponse | Exception]
"""One for each event of a batch, in their order; an exception is what `send` would have raised."""


@runtime_checkable
class BatchSink(Sink, Protocol):
    """A sink whose far end takes many events for little more than the price of one."""

    async def send_batch(self, events: Sequence[Event]) -> Outcomes:
        """Return once it is known of each event whether the far end has it.

        Called for up to `batch()` events, and for some batches at once, up to `slots()` events.
        Raises as `send` does what holds for all of them.
        """
        ...


class SinkModule(Protocol):
    """A folder in `relay/sinks/` as the config and the service see it."""

    Settings: type[SinkSettings]

    @staticmethod
    def build(settings: Any, clock: Clock) -> Sink:
        """Make the sink without opening a connection.

        Raises ValueError and InvalidTemplate that begin with the key at fault, `url: expected ...`;
        more than one at once as `relay.core.setting_errors` does.
        Of a config with unreadable values, reading one of those raises `Unreadable`.
        """
        ...
