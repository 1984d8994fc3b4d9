"""The work of bulk changes: counting, which goes on in the background, and the change."""

from relay.admin.api import dead_letters, replays
from relay.admin.api.parameters import EventOrder
from relay.admin.operation import Nothing
from relay.admin.page.jobs import DeliveryGroup, Job
from relay.admin.page.visit import ActionResult, Notice, PageVisit
from relay.core.units import number


async def count_replay(visit: PageVisit, job: Job) -> None:
    """Count what a replay would deliver."""

    def progress(share: float, count: int) -> None:
        job.share, job.count = share, count
        visit.jobs.progressed()

    estimate = await visit.run(replays.count_replay, Nothing(), job.chosen, progress=progress)
    job.count, job.nothing = estimate.total, estimate.nothing
    job.parts = [
        DeliveryGroup(sink=each.sink, kind=each.kind, reason=each.reason, count=each.count)
        for each in estimate.shares
    ]
    visit.jobs.end(job, "counted")


async def count_dead_letters(visit: PageVisit, job: Job) -> None:
    """Count what would be discarded."""
    job.share = None
    reasons = (await visit.run(dead_letters.count_dead_letters, job.chosen)).reasons
    job.parts = [
        DeliveryGroup(sink=each.sink, kind=None, reason=each.reason, count=each.count)
        for each in reasons
    ]
    job.count = sum(part.count for part in job.parts)
    job.nothing = None if job.count else "no dead letter matches"
    visit.jobs.end(job, "counted")


async def replay(visit: PageVisit, job: Job) -> ActionResult:
    """Start the replay that was counted, and lead to it."""
    # At once, so that a second click starts no second replay.
    job.state = "changing"
    try:
        order = job.chosen.extended(EventOrder, all=True)
        begun = await visit.run(replays.begin_replay, Nothing(), order, counted=job.count)
    except BaseException:
        job.state = "counted"
        raise
    job.replay = begun.id
    visit.jobs.end(job, "done")
    text = f"Replay {begun.id} of {number(begun.total)} deliveries has begun."
    return ActionResult(to=visit.url(f"/replays/{begun.id}"), notice=Notice(text=text))


async def discard(visit: PageVisit, job: Job) -> None:
    """Discard the counted dead letters, until stopped."""

    def goes_on(count: int) -> bool:
        job.changed, job.share = count, min(1.0, count / job.count)
        visit.jobs.progressed()
        return not job.is_stopping

    order = job.chosen.extended(dead_letters.Discard, all=True)
    result = await visit.run(dead_letters.discard_dead_letters, Nothing(), order, goes_on=goes_on)
    job.changed = result.discarded
    visit.jobs.end(job, "stopped" if job.is_stopping else "done")
