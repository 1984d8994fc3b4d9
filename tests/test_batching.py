"""How the sends of a sink share batches: who goes with whom, and who learns what."""

import asyncio
from collections.abc import Callable, Sequence

import pytest

from relay.batching import Batches
from relay.delivery import Answer
from relay.errors import Refused, Temporary


class FarEnd:
    """Keeps each batch until it is told what became of it."""

    def __init__(self, *, at_once: int = 1, largest: int = 3) -> None:
        self.batches: list[list[str]] = []
        self.answer: Callable[[Sequence[str]], list[Answer | Exception]] | None = None
        self._changed = asyncio.Event()
        self.sends = Batches(self._send, count=lambda w: min(len(w), largest), at_once=at_once)

    def say(self, answer: Callable[[Sequence[str]], list[Answer | Exception]]) -> None:
        self.answer = answer
        self._changed.set()

    async def _send(self, batch: Sequence[str]) -> list[Answer | Exception]:
        self.batches.append(list(batch))
        await self._changed.wait()
        assert self.answer is not None
        return self.answer(batch)

    def start(self, names: str) -> list[asyncio.Task[Answer]]:
        return [asyncio.create_task(self.sends.add(name)) for name in names]


def taken(batch: Sequence[str]) -> list[Answer | Exception]:
    return [Answer(excerpt=name) for name in batch]


async def settled() -> None:
    """Let everything run that can."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_what_comes_meanwhile_makes_up_the_next_batch() -> None:
    far_end = FarEnd()
    first = far_end.start("a")
    await settled()
    later = far_end.start("bcde")
    await settled()
    assert far_end.batches == [["a"]]
    far_end.say(taken)
    answers = await asyncio.gather(*first, *later)
    assert far_end.batches == [["a"], ["b", "c", "d"], ["e"]]
    assert [answer.excerpt for answer in answers] == list("abcde")


async def test_no_more_batches_are_on_their_way_than_are_allowed() -> None:
    far_end = FarEnd(at_once=2, largest=1)
    sends = far_end.start("abcd")
    await settled()
    assert far_end.batches == [["a"], ["b"]]
    far_end.say(taken)
    await asyncio.gather(*sends)
    assert far_end.batches == [["a"], ["b"], ["c"], ["d"]]


async def test_one_that_comes_as_the_last_batch_ends_is_sent() -> None:
    far_end = FarEnd()
    far_end.say(taken)
    async with asyncio.timeout(1):
        for turns in range(12):
            (first,) = far_end.start("a")
            for _ in range(turns):
                await asyncio.sleep(0)
            await asyncio.gather(first, *far_end.start("b"))


async def test_each_learns_its_own_outcome() -> None:
    far_end = FarEnd()
    far_end.say(lambda _: [Answer(excerpt="a"), Refused("not b"), Answer(excerpt="c")])
    found = await asyncio.gather(*far_end.start("abc"), return_exceptions=True)
    assert [getattr(each, "reason", None) for each in found] == [None, "not b", None]


async def test_a_failure_of_the_batch_is_everybodys() -> None:
    def fail(_: Sequence[str]) -> list[Answer | Exception]:
        raise Temporary("away")

    far_end = FarEnd()
    far_end.say(fail)
    found = await asyncio.gather(*far_end.start("abc"), return_exceptions=True)
    assert [type(each) for each in found] == [Temporary] * 3
    far_end.say(taken)
    assert await far_end.sends.add("d") == Answer(excerpt="d")


async def test_of_a_refused_batch_only_the_one_at_fault_is_refused() -> None:
    def refuse_b(batch: Sequence[str]) -> list[Answer | Exception]:
        if "b" in batch:
            raise Refused("not b")
        return taken(batch)

    far_end = FarEnd()
    far_end.say(refuse_b)
    found = await asyncio.gather(*far_end.start("abc"), return_exceptions=True)
    assert [type(each) for each in found] == [Answer, Refused, Answer]
    assert far_end.batches == [["a", "b", "c"], ["a"], ["b"], ["c"]]


async def test_who_gave_up_before_its_turn_is_not_sent() -> None:
    far_end = FarEnd()
    (first,) = far_end.start("a")
    await settled()
    gone, stays = far_end.start("bc")
    await settled()
    gone.cancel()
    await asyncio.wait({gone})
    far_end.say(taken)
    await asyncio.gather(first, stays)
    assert far_end.batches == [["a"], ["c"]]


async def test_a_batch_that_all_have_given_up_is_broken_off_and_makes_room() -> None:
    far_end = FarEnd()
    first = far_end.start("ab")
    await settled()
    (next_one,) = far_end.start("c")
    first[0].cancel()
    await settled()
    assert far_end.batches == [["a", "b"]]
    first[1].cancel()
    await settled()
    assert far_end.batches == [["a", "b"], ["c"]]
    far_end.say(taken)
    assert await next_one == Answer(excerpt="c")


async def test_nobody_is_left_waiting_where_outcomes_are_missing() -> None:
    far_end = FarEnd()
    far_end.say(lambda batch: taken(batch[1:]))
    found = await asyncio.gather(*far_end.start("abc"), return_exceptions=True)
    assert [str(each) for each in found] == ["2 outcomes for 3 items"] * 3
    far_end.say(taken)
    assert await far_end.sends.add("d") == Answer(excerpt="d")


async def test_a_client_that_cancels_itself_is_a_failure_that_passes() -> None:
    def cancel(_: Sequence[str]) -> list[Answer | Exception]:
        raise asyncio.CancelledError

    far_end = FarEnd()
    far_end.say(cancel)
    with pytest.raises(Temporary, match="broken off"):
        await far_end.sends.add("a")


async def test_sends_that_were_given_up_leave_nothing_behind() -> None:
    far_end = FarEnd()
    sends = far_end.start("abcdefgh")
    await settled()
    for task in sends:
        task.cancel()
    await asyncio.wait(sends)
    assert len(far_end.sends._waiting) == 0


async def test_closing_leaves_what_is_on_its_way() -> None:
    far_end = FarEnd()
    (send,) = far_end.start("a")
    await settled()
    await far_end.sends.close()
    await far_end.sends.close()
    assert not send.done()
    send.cancel()
    with pytest.raises(asyncio.CancelledError):
        await send
