"""Work on large bodies leaves the event loop; on small ones it does not."""

import asyncio
import threading

import pytest

from relay.core.large_bodies import LARGE_BYTES, BodyWorker


@pytest.mark.parametrize(
    ("size", "leaves"), [(0, False), (LARGE_BYTES, False), (LARGE_BYTES + 1, True)]
)
async def test_only_work_on_more_bytes_changes_the_thread(size: int, leaves: bool) -> None:
    thread = await BodyWorker("tested").run(size, threading.current_thread)
    assert (thread is not threading.current_thread()) == leaves


@pytest.mark.parametrize("size", [0, LARGE_BYTES + 1])
async def test_an_error_of_the_work_is_raised(size: int) -> None:
    with pytest.raises(ZeroDivisionError):
        await BodyWorker("tested").run(size, lambda: 1 // 0)


async def test_large_bodies_are_worked_on_one_after_another() -> None:
    worker, working, most = BodyWorker("tested"), 0, 0
    gate = threading.Event()

    def work() -> None:
        nonlocal working, most
        working += 1
        most = max(most, working)
        assert gate.wait(5)
        working -= 1

    tasks = [asyncio.create_task(worker.run(LARGE_BYTES + 1, work)) for _ in range(4)]
    await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(*tasks)
    assert most == 1
