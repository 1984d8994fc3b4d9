"""The sink protocol, which every folder in `relay/sinks/` implements.

A folder exports two names: `Settings`, its table in the config, and `build`.
The folder's name is the sink's `type`; nothing else names it.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

import msgspec

from relay.core.clock import Clock
from relay.core.config_values import Duration, Rate, Secret
from relay.core.delivery import SinkResponse
from relay.core.event import LEAD_CAPTURED, Event
from relay.core.proxies import OutboundSettings
from relay.core.retry import RetryPolicy
from relay.core.routing import Ordered
from relay.core.sink_status import WaitReason
from relay.core.watch_history import WatchHistory


class SinkSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Keys of every `[[sink]]` table; a sink's `Settings` adds keys or changes defaults."""

    destination: ClassVar[str | None] = None
    """The key whose template selects each event's target, such as a topic."""
    adopts_environment: ClassVar[bool] = False
    """Whether its client takes proxies of the environment where the config names none."""

    name: str
    type: str
    events: tuple[str, ...] = ("*",)
    sources: tuple[str, ...] | None = None
    when: str | None = None
    ordered: Ordered | None = None
    """Events of one video or viewer are sent one after another; others do not wait for them."""
    reconstructed: bool = False
    """Whether it takes events that were reconstructed after an outage."""
    concurrency: int = 1
    rate: Rate | None = None
    timeout: Duration = Duration.parse("10s")
    enrich: bool = False
    """A lead's message says what the person has watched, as the video service's API knows it."""
    enrich_timeout: Duration = Duration.parse("2s")
    """Longest wait for that before an attempt; then the message goes without."""
    retry: RetryPolicy = RetryPolicy()

    def warnings(self) -> Sequence[str]:
        """Return warnings about valid but suspicious settings; each begins with its key."""
        return ()

    @property
    def reason_of_sends(self) -> WaitReason:
        """Return what the next delivery waits for while those in flight take all slots."""
        return "sends"

    def enriches(self, event: Event) -> bool:
        """Whether the event's message is to say what its person has watched."""
        return self.enrich and event.kind == LEAD_CAPTURED

    def slots(self) -> int:
        """Return the maximum number of events in flight; larger for a sink that makes batches."""
        return self.concurrency

    def batch(self) -> int:
        """Return the maximum batch size, small enough for several batches in flight."""
        return 1

    def pace(self) -> Rate | None:
        """Return the maximum rate of `send`; None for a sink that limits its rate itself."""
        return self.rate

    def gathers_for_s(self) -> float:
        """Return how long the sink lets events wait for each other on purpose, in seconds."""
        return 0.0

    def send_timeout(self) -> Duration:
        """Return the timeout of one `send`, time in a batch included.

        It begins anew with each `relay.core.timeouts.RequestTimeout` that the sink opens.
        """
        return self.timeout

    def for_sample(self) -> Self:
        """Return settings with which a single sample is sent immediately, without a digest."""
        return self

    def attempt_limit_s(self) -> float:
        """Return the longest time of an attempt whose timeout never begins anew, in seconds."""
        return self.send_timeout().seconds + (self.enrich_timeout.seconds if self.enrich else 0.0)


class BatchSettings(SinkSettings, frozen=True, kw_only=True):
    """Settings of a `BatchSink`; while one batch is in flight, the next one fills."""

    def batch(self) -> int:
        return max(1, self.concurrency // 2)

    def send_timeout(self) -> Duration:
        # The sink enforces `timeout` itself, of each request: it knows which events succeeded.
        return Duration(self.timeout + 1000)


class ProxiedSettings(SinkSettings, frozen=True, kw_only=True):
    """Settings of a sink that speaks HTTP, which a company's proxy passes on."""

    proxy_url: Secret | None = None
    """In place of `[outbound] proxy_url`; "direct" means none."""
    outbound: OutboundSettings = OutboundSettings()
    """The document's table, which the reader puts here: no key of a sink."""


class Enricher(Protocol):
    """Knows what people have watched.

    The dispatcher asks before an attempt, and the event that it gives to the sink holds the answer.
    """

    async def watch_history(self, event: Event) -> WatchHistory | None:
        """Return what the event's person has watched; None where that cannot be known.

        Raises nothing. The caller cancels it once its time is over.
        """
        ...


class Sink(Protocol):
    """Sends events to one configured destination.

    The dispatcher calls `send` for up to `slots()` events at once, each with a timeout of
    `send_timeout()`, and may cancel it at any time.
    A sink neither logs nor counts, and its errors never hold a secret.
    """

    async def send(self, event: Event) -> SinkResponse:
        """Return once the destination has confirmed the event.

        An event's `watch_history` goes beside the body, in the place that the destination has for
        such things.
        Raises `Temporary` (try this event again), `Refused` (never accepted) or `Misconfigured`
        (nothing is accepted until an operator acts).
        """
        ...

    async def check(self) -> str | None:
        """Connect to the destination without delivering an event; raises as `send` does.

        Return details of the response, if there are any.
        """
        ...

    def render(self, event: Event) -> dict[str, Any]:
        """Return the message that `send` would send, as JSON values with secrets masked.

        It makes no requests: only a `watch_history` of the event itself is in the message.
        """
        ...

    async def close(self) -> None:
        """Close all connections; may be called twice."""
        ...


Outcomes = Sequence[SinkResponse | Exception]
"""One per event of a batch, in the same order; an exception is the one `send` would raise."""


@runtime_checkable
class BatchSink(Sink, Protocol):
    """A sink whose destination accepts a batch for little more than the cost of one event."""

    async def send_batch(self, events: Sequence[Event]) -> Outcomes:
        """Return once the outcome of every event is known.

        Called with up to `batch()` events, with at most `slots()` events in flight in all.
        Raises as `send` does if the whole batch failed.
        """
        ...


class SinkModule(Protocol):
    """The exports of a folder in `relay/sinks/`."""

    Settings: type[SinkSettings]

    @staticmethod
    def build(settings: Any, clock: Clock) -> Sink:
        """Create the sink without opening a connection.

        Raises ValueError and InvalidTemplate whose text starts with the key, `url: expected ...`;
        several at once as an ExceptionGroup (see `relay.core.setting_errors`).
        Reading a setting raises `UnreadableSetting` if its value in the config cannot be read.
        """
        ...
