"""What a service manager is told while the relay runs: that it is alive, and how it is doing."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping

from relay.clock import Clock
from relay.condition import Condition
from relay.errors import StoreBroken, StoreError
from relay.notify import Manager
from relay.store import Backlog
from relay.store.sqlite import SqliteStore

STATUS_EVERY_S = 5.0


class Supervision:
    """The chores that a manager asks for; none where there is no manager."""

    def __init__(
        self,
        manager: Manager,
        *,
        store: SqliteStore,
        conditions: Callable[[], Mapping[str, Condition]],
        trouble: Callable[[], str | None],
        clock: Clock,
    ) -> None:
        """`trouble` says why nothing can be committed at present."""
        self._manager = manager
        self._store = store
        self._conditions = conditions
        self._trouble = trouble
        self._clock = clock

    def chores(self) -> tuple[Coroutine[None, None, None], ...]:
        """All of them, each to be run as a task until it is cancelled."""
        if not self._manager:
            return ()
        if self._manager.watchdog_s is None:
            return (self._tell(),)
        return self._tell(), self._prove_alive(self._manager.watchdog_s / 2)

    async def _prove_alive(self, every_s: float) -> None:
        """Only a loop that turns gets here, and only a writer that is not stuck lets it go on.

        A disk that hangs holds up the writer with the next heartbeat at the latest.
        """
        while True:
            try:
                await self._store.respond()
            except StoreBroken:
                raise
            except StoreError:
                pass  # it did come round; what the trouble is, the heartbeat tells
            self._manager.alive()
            await asyncio.sleep(every_s)

    async def _tell(self) -> None:
        while True:
            trouble = self._trouble()
            try:
                backlogs = await self._store.backlogs()
            except StoreBroken:
                raise
            except StoreError as error:
                backlogs, trouble = {}, str(error)
            conditions = self._conditions().values()
            line = describe(conditions, backlogs, trouble, now_ms=self._clock.now_ms())
            self._manager.status(line)
            await asyncio.sleep(STATUS_EVERY_S)


def describe(
    conditions: Iterable[Condition],
    backlogs: Mapping[str, Backlog],
    trouble: str | None,
    *,
    now_ms: int,
) -> str:
    """Put how the relay is doing into one line: what fails first, then what waits."""
    conditions = tuple(conditions)
    failing = [f"{each.name} {each.state}" for each in conditions if each.state != "active"]
    active = len(conditions) - len(failing)
    sinks = ", ".join([f"{active} of {len(conditions)} sinks active", *failing])
    told = [sinks, _waiting(backlogs.values(), now_ms=now_ms)]
    if trouble is not None:
        told.insert(0, f"takes no events: {trouble}")
    return "; ".join(told)


def _waiting(backlogs: Iterable[Backlog], *, now_ms: int) -> str:
    backlogs = tuple(backlogs)
    pending = sum(each.pending for each in backlogs)
    dead = sum(each.dead for each in backlogs)
    oldest = [each.oldest_ms for each in backlogs if each.oldest_ms is not None]
    told = f"{pending} pending"
    if oldest and (minutes := (now_ms - min(oldest)) // 60_000) > 0:
        told += f", the oldest for {minutes} min"
    return f"{told}, {dead} dead" if dead else told
