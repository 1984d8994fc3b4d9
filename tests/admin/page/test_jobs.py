"""Bulk changes that work in the background."""

import asyncio
from typing import Any

import structlog

from relay.admin.api.parameters import Filter
from relay.admin.page.jobs import JOBS_MAX, Job, Jobs
from relay.core.clock import Clock
from relay.telemetry.activity_stream import ActivityStream


def counted(jobs: Jobs) -> Job:
    job = Job(change="discard", fields={}, chosen=Filter(), is_everything=True, sample=[])
    jobs.run(job, idle)
    jobs.end(job, "counted")
    return job


async def idle() -> None:
    pass


async def test_a_job_that_is_started_again_is_kept_however_old_it_is(clock: Clock) -> None:
    jobs = Jobs(ActivityStream(clock), clock)
    oldest, *_ = [counted(jobs) for _ in range(JOBS_MAX)]
    for _ in range(2):
        counted(jobs)
        jobs.run(oldest, idle)
    assert jobs.find(oldest.identifier) is oldest


async def test_a_bug_of_a_job_is_logged(clock: Clock) -> None:
    async def fails() -> Any:
        raise KeyError

    jobs = Jobs(ActivityStream(clock), clock)
    job = Job(change="discard", fields={}, chosen=Filter(), is_everything=True, sample=[])
    with structlog.testing.capture_logs() as lines:
        jobs.run(job, fails)
        assert job.task is not None
        await asyncio.wait([job.task])
    assert job.state == "failed"
    assert [(line["event"], line["error"]) for line in lines] == [("relay.bug", "KeyError")]
