"""Whether the relay is ready, asked by many at once."""

import asyncio
from typing import Any, cast

from relay.admin.readiness import Readiness
from tests.conftest import ManualClock


class Quick:
    """A store with only a `probe`, which is over in a moment."""

    async def probe(self, *, now_ms: int) -> None:
        del now_ms
        await asyncio.sleep(0)


async def test_a_caller_that_asks_while_a_probe_ends_gets_an_answer() -> None:
    readiness = Readiness(cast("Any", Quick()), ManualClock(), draining=lambda: False)

    async def ask(moments: int) -> list[str]:
        for _ in range(moments):
            await asyncio.sleep(0)
        return await readiness.problems()

    assert await asyncio.gather(*(ask(moments) for moments in range(20))) == [[]] * 20
