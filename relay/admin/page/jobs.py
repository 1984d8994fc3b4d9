"""Bulk changes before they are confirmed: counted in the background, kept in memory for a while."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Literal

import msgspec
from starlette.exceptions import HTTPException

from relay.admin.api.parameters import Filter
from relay.admin.problem import problem_of
from relay.core.clock import Clock
from relay.core.errors import Stopping, StoreError
from relay.store.events import EventRecord
from relay.telemetry import log
from relay.telemetry.activity_stream import ActivityStream

KEPT_MS = 600_000
"""Age at which a count is too old to be confirmed."""

JOBS_MAX = 20
RUNNING_MAX = 4
"""Jobs that run at once; each holds up other searches for a moment."""

SIGNAL_S = 0.5
"""Shortest time between two signals to open pages that a job has got further."""

Change = Literal["replay", "discard"]
State = Literal["counting", "counted", "expired", "changing", "done", "stopped", "failed"]


class DeliveryGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Deliveries with the same sink, kind and reason; None where it makes no difference."""

    sink: str
    kind: str | None
    reason: str | None
    count: int


class Job(msgspec.Struct, eq=False, kw_only=True):
    """A bulk change: its count, its confirmation and, for a discard, its progress."""

    change: Change
    fields: Mapping[str, str]
    """The form's fields, for links and for counting again."""
    chosen: Filter
    """The counted events: none newer than the start of the count, and no relative times."""
    is_everything: bool
    """Whether no filter is given."""
    sample: Sequence[EventRecord]
    identifier: str = msgspec.field(default_factory=lambda: secrets.token_urlsafe(9))
    state: State = "counting"
    share: float | None = 0.0
    """How much is done, 0 to 1; None if that is unknown."""
    count: int = 0
    parts: Sequence[DeliveryGroup] = ()
    nothing: str | None = None
    """Why nothing matches."""
    changed: int = 0
    """Deliveries that are changed so far."""
    replay: int | None = None
    """The replay that was started."""
    problem: str | None = None
    ended_ms: int | None = None
    """When it got into its state, unless it runs."""
    task: asyncio.Task[None] | None = None
    is_stopping: bool = False

    @property
    def runs(self) -> bool:
        return self.state in ("counting", "changing")

    def is_too_old(self, now_ms: int) -> bool:
        """Whether its count cannot be confirmed any more."""
        return self.state == "counted" and now_ms > (self.ended_ms or 0) + KEPT_MS


class Jobs:
    """The latest jobs; those of a relay that has stopped are gone."""

    def __init__(self, activity: ActivityStream, clock: Clock) -> None:
        self._activity = activity
        self._clock = clock
        self._jobs: dict[str, Job] = {}
        self._signalled_s = 0.0

    def find(self, identifier: str) -> Job:
        """Return a job; raises HTTPException if it is unknown, such as after a restart."""
        job = self._jobs.get(identifier)
        if job is None:
            raise HTTPException(404, "This count is too old, or the relay was restarted since.")
        if job.is_too_old(self._clock.now_ms()):
            job.state = "expired"
        return job

    def run(self, job: Job, work: Callable[[], Awaitable[None]]) -> None:
        """Work on a job in the background; raises HTTPException if too many run."""
        if sum(each.runs for each in self._jobs.values() if each is not job) >= RUNNING_MAX:
            raise HTTPException(429, "Too many counts run at once. Stop one, or wait.")
        self._jobs[job.identifier] = job
        idle = [each for each in self._jobs.values() if each is not job and not each.runs]
        for old in idle[:-JOBS_MAX]:
            del self._jobs[old.identifier]
        job.task = asyncio.create_task(self._run(job, work))

    async def _run(self, job: Job, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Exception as error:  # noqa: BLE001  nobody else would see a bug of it
            job.problem = problem_of(error).detail
            self.end(job, "failed")
            if not isinstance(error, HTTPException | StoreError | Stopping):
                log.get().error("relay.bug", **log.describe(error))

    def stop(self, job: Job) -> None:
        """Stop a job that runs: a count at once, a discard after its present step."""
        job.is_stopping = True
        if job.state == "counting" and job.task is not None:
            job.task.cancel()
            self.end(job, "stopped")

    def end(self, job: Job, state: State) -> None:
        """Set a state that lasts until the next request for the job."""
        job.state, job.ended_ms = state, self._clock.now_ms()
        self._activity.count("change")

    def progressed(self) -> None:
        """Make open pages read a job again, now and then."""
        now_s = self._clock.monotonic()
        if now_s - self._signalled_s >= SIGNAL_S:
            self._signalled_s = now_s
            self._activity.count("change")
