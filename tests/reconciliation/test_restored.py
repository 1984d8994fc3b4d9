"""A video that is restored and moved to Trash again: each move is an event of its own."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.reconciliation.simulation import GIVEN_UP_MS, World, world

pytestmark = pytest.mark.servers


class Trash:
    """Moves a video to Trash and back, as a person of the workspace does."""

    def __init__(self, one: World) -> None:
        self._one = one
        self._video = next(iter(one.sandbox.workspace.videos.values()))

    def move(self) -> None:
        self._one.sandbox.services.library.trash(self._video.id)

    def restore(self) -> None:
        self._video.trashed = False
        self._video.updated_ms = self._one.clock.now_ms()

    def moves(self, sink: str = "crm") -> int:
        """Count the moves that a sink was sent."""
        events = {body["id"]: body["event"] for body in self._one.received(sink)}
        return list(events.values()).count("video.deleted")


@pytest.fixture
async def one(tmp_path: Path) -> AsyncIterator[World]:
    async with world(tmp_path, viewers=0, videos=2) as made:
        async with made.relay() as relay:
            made.submit()
            await made.step_hours(5)
            await relay.settled()
        yield made


async def test_a_second_move_is_not_taken_for_the_original_of_the_first(one: World) -> None:
    trash = Trash(one)
    await one.step_hours(1)
    trash.move()
    await one.step_hours(1)
    async with one.relay() as relay:
        await one.step(GIVEN_UP_MS)
        await relay.reconcile()
        await relay.settled()
        assert trash.moves() == 1
        trash.restore()
        await one.step_hours(1)
        trash.move()
        await one.step_hours(1)
        await relay.settled()
        assert trash.moves() == 2
        assert trash.moves("plain") == 1


async def test_a_second_move_that_was_lost_is_given_back_once(one: World) -> None:
    trash = Trash(one)
    async with one.relay() as relay:
        trash.move()
        await one.step_hours(1)
        trash.restore()
        await one.step_hours(1)
        await relay.settled()
        assert trash.moves() == 1
    await one.step_hours(1)
    trash.move()
    await one.step_hours(1)
    async with one.relay() as relay:
        await one.step(GIVEN_UP_MS)
        run = await relay.reconcile()
        assert run["report"]["events"] == {"video.deleted": 1}
        again = await relay.reconcile(since_ms=run["since_ms"])
        assert again["report"]["events"] == {}
        await relay.settled()
        assert trash.moves() == 2
