"""How a batch is parted, and that each of its events has an outcome of its own.

An event is a letter here; chains are written as words, one for each part: "ab c" is two of them.
"""

import asyncio
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from relay.core import sample_events
from relay.core.delivery import SinkResponse
from relay.core.errors import Misconfigured, Refused, Temporary
from relay.core.event import LEAD_CAPTURED, Event
from relay.core.large_bodies import LARGE_BYTES
from relay.core.sink import Outcomes
from relay.outbound.batching import (
    BatchOnlySink,
    Chain,
    Entries,
    Entry,
    SplittingSink,
    cut,
    prepare,
)

Say = Callable[[str], Outcomes]


def taken(part: str) -> Outcomes:
    return [SinkResponse(excerpt=letter) for letter in part]


def fails(letter: str, error: BaseException) -> Say:
    """Fail each part that this letter is in."""

    def say(part: str) -> Outcomes:
        if letter in part:
            raise error
        return taken(part)

    return say


@dataclass
class BatchDestination(SplittingSink):
    """Says of each part what it is told, but of those that it holds nothing."""

    chains: Sequence[str]
    say: Say = taken
    held: str = ""
    _timeout_s: float = 60.0
    parts: list[str] = field(default_factory=list)

    async def deliver(self, letters: str) -> Outcomes:
        return await self.send_batch([event(letter) for letter in letters])

    def _prepare(self, event: Event) -> Entry:
        return Entry(event.id, 1)

    def _split(self, entries: Entries) -> Sequence[Chain]:
        places = {entry.content: place for place, entry in entries.items()}
        return [[[places[each] for each in part] for part in way.split()] for way in self.chains]

    async def _send_part(self, entries: Sequence[Entry]) -> Outcomes:
        part = "".join(entry.content for entry in entries)
        self.parts.append(part)
        if part in self.held.split():
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        return self.say(part)


def event(letter: str) -> Event:
    return sample_events.event(LEAD_CAPTURED, event_id=letter)


def names(outcomes: Outcomes) -> list[str]:
    """Name what an answer says, or the type of an error."""
    return [
        each.excerpt if isinstance(each, SinkResponse) else type(each).__name__ for each in outcomes
    ]


async def settled() -> None:
    """Let everything run that can."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_outcomes_are_in_the_order_of_the_events() -> None:
    destination = BatchDestination(["d a", "cb"])
    assert names(await destination.deliver("abcd")) == ["a", "b", "c", "d"]


async def test_parts_of_a_chain_are_sent_in_order_and_chains_in_parallel() -> None:
    destination = BatchDestination(["a b", "c d", "e"], held="a e")
    delivering = asyncio.create_task(destination.deliver("abcde"))
    await settled()
    assert destination.parts == ["a", "c", "e", "d"]
    delivering.cancel()
    await asyncio.wait({delivering})


async def test_a_failed_part_is_the_outcome_of_its_own_events_only() -> None:
    error = Temporary("away")
    destination = BatchDestination(["ab cd", "e"], fails("b", error))
    outcomes = await destination.deliver("abcde")
    assert outcomes[:2] == [error, error]
    assert names(outcomes[2:]) == ["c", "d", "e"]


async def test_each_event_of_a_part_can_have_its_own_outcome() -> None:
    error = Misconfigured("not here")
    destination = BatchDestination(
        ["abc"], lambda _: [SinkResponse(excerpt="a"), error, SinkResponse(excerpt="c")]
    )
    assert names(await destination.deliver("abc")) == ["a", "Misconfigured", "c"]
    assert destination.parts == ["abc"]


async def test_only_the_faulty_event_of_a_refused_part_is_refused() -> None:
    destination = BatchDestination(["abcd", "e"], fails("b", Refused("not b")))
    assert names(await destination.deliver("abcde")) == ["a", "Refused", "c", "d", "e"]
    assert [part for part in destination.parts if part != "e"] == ["abcd", "ab", "a", "b", "cd"]


async def test_the_refused_event_among_many_is_found_in_few_sends() -> None:
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-"
    destination = BatchDestination([letters], fails("q", Refused("not q")))
    found = names(await destination.deliver(letters))
    assert found == ["Refused" if letter == "q" else letter for letter in letters]
    assert len(destination.parts) == 1 + 2 * math.log2(len(letters))


async def test_all_can_be_refused_each_for_itself() -> None:
    def refuse(part: str) -> Outcomes:
        raise Refused(f"not {part}")

    outcomes = await BatchDestination(["abc"], refuse).deliver("abc")
    assert [str(each) for each in outcomes] == ["not a", "not b", "not c"]


async def test_a_bug_is_the_outcome_of_its_part_alone() -> None:
    destination = BatchDestination(["ab c", "d"], fails("a", ZeroDivisionError()))
    found = names(await destination.deliver("abcd"))
    assert found == ["ZeroDivisionError", "ZeroDivisionError", "c", "d"]


@pytest.mark.parametrize("said", ["", "a", "abc"])
async def test_a_number_of_outcomes_other_than_that_of_the_events_is_a_bug(said: str) -> None:
    destination = BatchDestination(["ab c"], lambda part: taken(said if part == "ab" else part))
    assert names(await destination.deliver("abc")) == ["ValueError", "ValueError", "c"]


async def test_a_message_that_cannot_be_prepared_fails_no_other() -> None:
    class Choosy(BatchDestination):
        def _prepare(self, event: Event) -> Entry:
            if event.id in "bc":
                raise {"b": Refused("not b"), "c": ZeroDivisionError()}[event.id]
            return super()._prepare(event)

    destination = Choosy(["ad"])
    found = names(await destination.deliver("abcd"))
    assert found == ["a", "Refused", "ZeroDivisionError", "d"]
    assert destination.parts == ["ad"]
    assert names(await destination.deliver("bc")) == ["Refused", "ZeroDivisionError"]
    assert destination.parts == ["ad"]


async def test_a_part_that_a_sink_forgets_is_a_bug() -> None:
    with pytest.raises(KeyError):
        await BatchDestination(["a"]).deliver("ab")


@pytest.mark.parametrize("chains", [["ab c"], ["ab c", "d"]])
async def test_a_client_that_cancels_itself_fails_its_part_and_passes(chains: list[str]) -> None:
    destination = BatchDestination(chains, fails("a", asyncio.CancelledError()))
    letters = "".join(chains).replace(" ", "")
    outcomes = await destination.deliver(letters)
    assert [str(each) for each in outcomes[:2]] == ["the client library broke it off"] * 2
    assert names(outcomes) == ["Temporary", "Temporary", *letters[2:]]


async def test_a_client_that_runs_out_of_time_by_itself_fails_its_part_alone() -> None:
    destination = BatchDestination(["ab c"], fails("a", TimeoutError()))
    outcomes = await destination.deliver("abc")
    assert [str(each) for each in outcomes[:2]] == ["no answer in time"] * 2
    assert names(outcomes) == ["Temporary", "Temporary", "c"]


async def test_outcomes_that_came_in_time_are_kept() -> None:
    destination = BatchDestination(["a bc d", "e"], held="bc", _timeout_s=0.05)
    outcomes = await destination.deliver("abcde")
    assert names(outcomes) == ["a", "Temporary", "Temporary", "Temporary", "e"]
    assert {str(each) for each in outcomes[1:4]} == {"no answer within 0.05 s"}
    await settled()
    assert "d" not in destination.parts


async def test_confirmed_events_stay_confirmed_while_a_refused_part_is_sent_by_halves() -> None:
    destination = BatchDestination(
        ["abcd"], fails("b", Refused("not b")), held="cd", _timeout_s=0.05
    )
    assert names(await destination.deliver("abcd")) == ["a", "Refused", "Temporary", "Temporary"]


@pytest.mark.parametrize("chains", [["a b c"], ["a b", "c d"]])
async def test_nothing_more_of_a_cancelled_batch_is_sent(chains: list[str]) -> None:
    before = asyncio.all_tasks()
    destination = BatchDestination(chains, held="a c")
    delivering = asyncio.create_task(destination.deliver("".join(chains).replace(" ", "")))
    await settled()
    sent = list(destination.parts)
    delivering.cancel()
    await asyncio.wait({delivering}, timeout=5)
    assert delivering.cancelled()
    assert asyncio.all_tasks() == before
    await settled()
    assert destination.parts == sent


@pytest.mark.parametrize("chains", [["a b"], ["a b", "c"]])
@pytest.mark.parametrize("error", [None, Temporary("hung up")])
async def test_a_client_that_swallows_a_cancellation_is_not_used_again(
    chains: list[str], error: Exception | None
) -> None:
    class Deaf(BatchDestination):
        async def _send_part(self, entries: Sequence[Entry]) -> Outcomes:
            try:
                return await super()._send_part(entries)
            except asyncio.CancelledError:
                if error is not None:
                    raise error from None
                return taken("".join(entry.content for entry in entries))

    destination = Deaf(chains, held="a")
    delivering = asyncio.create_task(destination.deliver("".join(chains).replace(" ", "")))
    await settled()
    delivering.cancel()
    await asyncio.wait({delivering}, timeout=5)
    assert delivering.cancelled()
    assert "b" not in destination.parts
    destination._timeout_s = 0.05
    outcomes = await destination.deliver("".join(chains).replace(" ", ""))
    assert "b" not in destination.parts
    assert names(outcomes[:2]) == ["a" if error is None else "Temporary", "Temporary"]


async def test_a_single_send_is_a_batch_of_one() -> None:
    class Sink(BatchOnlySink):
        async def send_batch(self, events: Sequence[Event]) -> Outcomes:
            return await BatchDestination([events[0].id], fails("b", Temporary("away"))).deliver(
                events[0].id
            )

    sink = Sink()
    assert await sink.send(event("a")) == SinkResponse(excerpt="a")
    with pytest.raises(Temporary, match="away"):
        await sink.send(event("b"))


def sized(sizes: list[int]) -> Entries:
    return {place: Entry(None, size) for place, size in enumerate(sizes)}


def test_parts_are_filled_one_after_the_other() -> None:
    parts = cut(sized([4, 4, 2, 1, 1, 1, 11, 3, 12]), count_max=3, size_max=10)
    assert parts == [[0, 1, 2], [3, 4, 5], [6], [7], [8]]


@given(
    st.lists(st.integers(0, 20), min_size=1),
    st.integers(1, 5),
    st.integers(1, 15),
)
def test_a_part_is_too_large_only_where_one_alone_is(
    sizes: list[int], count_max: int, size_max: int
) -> None:
    parts = cut(sized(sizes), count_max, size_max)
    assert [place for part in parts for place in part] == list(range(len(sizes)))
    for part in parts:
        assert len(part) == 1 or sum(sizes[place] for place in part) <= size_max
        assert 1 <= len(part) <= count_max


@pytest.mark.parametrize(("size", "beside"), [(400, False), (5 * LARGE_BYTES, True)])
async def test_only_the_messages_of_large_events_are_made_beside_the_event_loop(
    size: int, beside: bool
) -> None:
    def make(event: Event) -> bool:
        return threading.current_thread() is not threading.main_thread()

    lead = sample_events.event(LEAD_CAPTURED)
    made, failures = await prepare(make, [lead, replace(lead, body=bytes(size))])
    assert (made, failures) == ({0: beside, 1: beside}, {})
