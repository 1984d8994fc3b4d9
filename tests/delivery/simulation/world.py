"""One run: relays that share a store, their destinations, a sender, and what happens to them."""

import asyncio
import math
import signal
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from logging import CRITICAL
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar

import structlog

from relay.core.cluster.timing import RETRY_S
from relay.core.errors import StoreError
from relay.telemetry.metrics import Metrics
from tests.delivery.simulation import scenario
from tests.delivery.simulation.destination import Destination
from tests.delivery.simulation.invariants import (
    LOOK_EVERY_S,
    STORE_BACK_S,
    Invariants,
)
from tests.delivery.simulation.line import SimulationLoop
from tests.delivery.simulation.member import GRACE, Member
from tests.delivery.simulation.postgres import PostgresEngine
from tests.delivery.simulation.sender import Load, Sender
from tests.delivery.simulation.sqlite import SqliteEngine
from tests.seeds import Violation

if TYPE_CHECKING:
    from relay.core.clock import Clock

HEALED_IN_S = 60.0
"""All is delivered this long after the last event and the last disturbance."""

_MIN_MS = 60_000

REAL_S = 60.0
"""A run takes less real time than this, which is a hundred times the usual one."""

FASTEST = Load(gap_s=1 / 120, burst=1, seconds=3.0)
"""Faster than the longest round trips, even where a sink gets only a part of it."""

_GOOD_EVERY_S = 0.5
"""Time between the good events that open a sink once nothing else comes."""


class World:
    """One run; everything in it follows from the seed. Even seeds run on PostgreSQL."""

    clock_errors_ms: ClassVar = (
        0,
        400,
        -400,
        4 * _MIN_MS,
        -4 * _MIN_MS,
        10 * _MIN_MS,
        -10 * _MIN_MS,
    )
    clock_steps_ms: ClassVar = clock_errors_ms[1:]
    trips_s: ClassVar[tuple[float, ...]] = (0.0, 0.001, 0.004, 0.01, 0.02)
    """Round trips to the database, or to the thread of SQLite and its disk."""
    loads: ClassVar[tuple[Load, ...]] = (
        FASTEST,
        Load(gap_s=1 / 50, burst=1, seconds=4.0),
        Load(gap_s=1.6, burst=8, seconds=8.0),
        Load(gap_s=1.6, burst=2, seconds=8.0),
    )
    """Loads that never pause, and some between whose events all is quiet."""
    poisonous_shares: ClassVar[tuple[float, ...]] = (0.0, 0.0, 0.1, 0.5, 0.9)
    """Of the events that every destination refuses for ever."""

    def __init__(self, seed: int, *, trace: bool = False) -> None:
        self.seed = seed
        self._trace = trace
        self.random = Random(seed)
        self.is_shared = seed % 2 == 0
        self.metrics = Metrics(["main"], [])

    def run(self) -> None:
        """Raise Violation if an invariant does not hold."""
        try:
            with _quiet(), _limited(), asyncio.Runner(loop_factory=SimulationLoop) as runner:
                runner.run(self._run())
        except RuntimeError as error:
            raise Violation(str(error)) from error
        except _Hang:
            raise Violation(f"it hangs: it has not ended within {REAL_S:g} real seconds") from None

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._failed: asyncio.Future[None] = self._loop.create_future()
        self._loop.set_exception_handler(lambda _, context: self._fail(context["message"]))
        random = self.random
        self.engine: Any = PostgresEngine() if self.is_shared else SqliteEngine()
        self.trip_s = random.choice(self.trips_s)
        self.destinations: dict[str, Destination] = {}
        self.shares: dict[str, float] = {}
        """Of the events that each sink gets."""
        self.members: list[Member] = []
        self._owners: dict[str, Member] = {}
        self.changing: set[str] = set()
        """Sinks between two owners, or two configs."""
        self.disturbed_s: defaultdict[str, float] = defaultdict(float)
        """When the outcome of a send may have been lost, by sink."""
        self.clock_set_s = -math.inf
        """When the store's clock was set last."""
        self.set_back_s = 0.0
        """How far the database's clock was set back in all.

        A relay that takes a sink over right then cannot tell a retry's time by the clock before
        from a pause that the destination asked for: it waits for as long.
        """
        self.invariants = Invariants(self)
        load = random.choice(self.loads)
        self.poisonous_share = random.choice(self.poisonous_shares)
        self.sender = Sender(self, load)
        self.log(
            f"{load}; {self.poisonous_share} of the events are poisonous; "
            f"{self.trip_s * 1000:g} ms for a round trip"
        )
        for number in range(random.choice((1, 2, 3))):
            self._add(f"sink{number + 1}")
        for _ in range(random.choice((2, 3)) if self.is_shared else 1):
            self.join()
        for sink in self.destinations:
            await self._take_over(sink)
        run = self._loop.create_task(self._play(load.seconds))
        looking = self._loop.create_task(self._look())
        await asyncio.wait((run, looking, self._failed), return_when=asyncio.FIRST_COMPLETED)
        for each in (self._failed, looking, run):
            if each.done():
                each.result()
                break

    async def _play(self, load_s: float) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.sender.run(load_s))
            group.create_task(scenario.play(self, load_s))
        self.log("the last event is acknowledged, the last disturbance over")
        healed_in_s = HEALED_IN_S + self.set_back_s
        until_s = self.now_s + healed_in_s
        while left := sum(map(self.engine.pending, self.destinations)):
            if self.now_s > until_s:
                raise Violation(f"{left} deliveries have not ended after {healed_in_s:g} s")
            for sink in self.destinations:
                owner = self.owner(sink)
                if owner is not None and owner.state(sink) == "parked":
                    self.sender.submit_good(sink)
            await asyncio.sleep(_GOOD_EVERY_S)
        self.invariants.check_account()

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            self.invariants.look()

    @property
    def now_s(self) -> float:
        return self._loop.time()

    def store_ms(self) -> int:
        """Return the store's now: on SQLite, the clock of the relay's machine."""
        clock: Clock = self.engine.clock if self.is_shared else self.members[-1].machine
        return clock.now_ms()

    def clock_was_set(self) -> None:
        """Note that the store's clock was."""
        self.clock_set_s = self.now_s

    def log(self, text: str) -> None:
        if self._trace:
            print(f"{self.now_s:9.4f}  {text}")  # noqa: T201 - the trace is for a person

    def guard(self, check: Callable[[], None]) -> None:
        """Fail the run, not the code that the check was called by."""
        try:
            check()
        except Violation as violation:
            self._fail(violation)

    def _fail(self, error: Violation | str) -> None:
        if not self._failed.done():
            self._failed.set_exception(Violation(error) if isinstance(error, str) else error)

    # Relays

    def join(self) -> None:
        """Start a relay."""
        if self.members and not self.is_shared:
            error_ms = self.members[-1].machine.error_ms
        else:
            error_ms = self.random.choice(self.clock_errors_ms)
        member = Member(self, len(self.members) + 1, clock_error_ms=error_ms)
        member.life.add_done_callback(self._ended)
        self.members.append(member)
        self.log(f"{member.name} starts, its clock {error_ms} ms ahead")
        if not self.is_shared:
            self._owners = dict.fromkeys(self.destinations, member)
            for sink in self.destinations:
                self.invariants.refusals.begins_anew(sink)

    def _ended(self, life: "asyncio.Task[None]") -> None:
        if not life.cancelled() and (error := life.exception()) is not None:
            self._fail(f"a relay has ended: {error!r}, {getattr(error, 'exceptions', ())!r}")

    @property
    def serving(self) -> list[Member]:
        """The relays that have started, and are not stopping."""
        return [member for member in self.members if member.is_alive and member.is_ready]

    def any_member(self) -> Member | None:
        serving = self.serving
        return self.random.choice(serving) if serving else None

    def any_sink(self) -> str:
        return self.random.choice(list(self.destinations))

    def owner(self, sink: str) -> Member | None:
        return self._owners.get(sink)

    def disturb(self, sink: str) -> None:
        """Note that an outcome of the sink may be lost."""
        self.disturbed_s[sink] = self.now_s

    async def stop(self, member: Member) -> None:
        """Stop a relay cleanly; if others share the store, they take its sinks over."""
        if self.is_shared:
            member.is_alive = False
            await asyncio.gather(*(self.hand_over(sink, member) for sink in self._of(member)))
            await member.stop()
            return
        self.changing.update(self.destinations)
        member.is_alive = False
        await member.stop()
        for sink in self.destinations:
            self.disturb(sink)
        self.changing.clear()
        self._owners.clear()

    async def kill(self, member: Member) -> None:
        """Kill a relay; another one takes over once its leases have expired."""
        sinks = self._of(member)
        member.kill()
        for sink in sinks:
            self.disturb(sink)
            del self._owners[sink]
            self.engine.own(sink, None)
        await asyncio.sleep(self.random.uniform(0.5, 2))
        self.join()
        if self.is_shared:
            for sink in sinks:
                await self._take_over(sink)

    def _of(self, member: Member) -> list[str]:
        return [sink for sink, owner in self._owners.items() if owner is member]

    async def hand_over(self, sink: str, owner: Member) -> None:
        """Move a sink to another relay, once no other change of it is under way."""
        while sink in self.changing:
            await asyncio.sleep(LOOK_EVERY_S)
        if self._owners.get(sink) is owner:
            self.changing.add(sink)
            await self._release(sink, owner)

    async def recover(self, sink: str, owner: Member) -> None:
        """Move a sink whose owner has learned that it has lost it."""
        if self._owners.get(sink) is owner:
            await self._release(sink, owner)

    async def _release(self, sink: str, owner: Member) -> None:
        await owner.supervisor.end(sink, grace=GRACE)
        self.disturb(sink)
        owner.store.ownership.released(sink)
        if self._owners.get(sink) is owner:
            del self._owners[sink]
        await asyncio.sleep(self.random.uniform(0, 1))
        await self._take_over(sink)
        self.changing.discard(sink)

    async def _take_over(self, sink: str) -> None:
        """Give a sink without an owner to a relay."""
        if not self.is_shared:
            return
        while (member := self.any_member()) is None:
            await asyncio.sleep(0.1)
        if self._owners.get(sink) is not None:
            return
        self.log(f"{member.name} takes {sink} over")
        self._owners[sink] = member
        self.invariants.refusals.begins_anew(sink)
        self.engine.own(sink, member.store)
        self.changing.discard(sink)
        await _until_done(lambda: member.supervisor.begin(sink), member)

    async def cut(self, member: Member, seconds: float) -> None:
        """Keep a relay from its store for a while."""
        member.line.is_cut = True
        member.reaches_store_s = self.now_s + seconds + STORE_BACK_S
        await asyncio.sleep(seconds)
        member.line.is_cut = not member.is_alive
        for sink in self._of(member):
            self.disturb(sink)

    # Operators

    async def order(self, give: Callable[[Member], Awaitable[Any]]) -> None:
        """Give an operator's order to some relay; the others follow a survey later."""
        is_given = False
        while not is_given:
            while (member := self.any_member()) is None:
                await asyncio.sleep(0.1)
            is_given = await _until_done(partial(give, member), member)
        await asyncio.sleep(self.random.uniform(0, 1) if self.is_shared else 0)
        for other in self.serving:
            if other is not member:
                await _until_done(partial(other.supervisor.reconsider, ()), other)

    def replay(self, sink: str) -> None:
        """Open some deliveries again that have ended."""
        self.disturb(sink)
        self.engine.reopen(sink, self.store_ms())
        self._loop.call_later(self.random.uniform(0, 0.5), self._wake, sink)

    async def reload(self, sink: str) -> None:
        """Add a sink, or replace it, at every relay."""
        self.changing.add(sink)
        fresh = {sink: self._add(sink)}
        self.invariants.refusals.begins_anew(sink)
        for member in self.serving:
            await _until_done(partial(member.reload, fresh), member)
        if self.is_shared:
            await self._take_over(sink)
        elif self.members[-1].is_alive:
            self._owners[sink] = self.members[-1]
        await asyncio.sleep(GRACE.seconds)
        self.changing.discard(sink)

    def _add(self, sink: str) -> Destination:
        added, self.shares[sink] = scenario.destination(sink, self.random)
        self.destinations[sink] = added
        self.metrics.add_sink(sink)
        self.log(f"{sink}: {added.settings.type}")
        return added

    # Announcements

    def announce(self, sink: str, *, by: Member) -> None:
        """Wake a sink that has a new delivery: here at once, elsewhere by a message or a poll."""
        if self._owners.get(sink) is by:
            by.supervisor.wake(sink)
            return
        is_heard = self.random.random() < 0.8
        delay_s = self.random.uniform(0, 0.02) if is_heard else self.random.uniform(0, 0.5)
        self._loop.call_later(delay_s, self._wake, sink)

    def _wake(self, sink: str) -> None:
        owner = self._owners.get(sink)
        if owner is not None and owner.is_alive:
            owner.supervisor.wake(sink)


async def _until_done(act: Callable[[], Awaitable[Any]], member: Member) -> bool:
    """Try again while the relay does not reach its store; return whether it was done."""
    while member.is_alive:
        try:
            await act()
        except StoreError:
            await asyncio.sleep(RETRY_S)
        else:
            return True
    return False


class _Hang(KeyboardInterrupt):
    """Ends the loop, because asyncio keeps it from no caller and no `except` takes it."""


@contextmanager
def _limited() -> Iterator[None]:
    """Raise _Hang after `REAL_S`, wherever the run is, and again if it hangs while it ends."""

    def end(*_: object) -> None:
        raise _Hang

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, REAL_S, REAL_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def _quiet() -> Iterator[None]:
    """Write no log."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(CRITICAL))
    try:
        yield
    finally:
        structlog.configure(**before)
