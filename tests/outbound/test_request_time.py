"""The time of an attempt follows its requests: each has the timeout, however many there are."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from relay.core.config_values import Duration
from relay.core.delivery import SinkResponse
from relay.core.errors import Refused
from relay.core.event import Event
from relay.core.sink import BatchSettings, Outcomes
from relay.core.timeouts import Deadlines, RequestTimeout, current_timeout, restart
from relay.delivery.attempt import AttemptResult, Send, attempt
from relay.outbound.batching import Entry
from tests.outbound.test_batching import BatchDestination, event, fails, taken
from tests.outbound.test_publishing import Connection, DoubleSink
from tests.virtual_time import LoopClock, VirtualLoop

TIMEOUT_S = 10.0
REQUEST_S = 8.0
"""Longer than half of the timeout: two requests do not fit into it."""

LETTERS = "abcdefgh"


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, object]]:
    return "asyncio", {"loop_factory": VirtualLoop}


async def tried(send: Send, letters: str = LETTERS) -> tuple[list[AttemptResult], float]:
    """Make an attempt as a dispatcher does; return its results, and how long it took."""
    settings = BatchSettings(name="s", type="t", timeout=Duration(round(TIMEOUT_S * 1000)))
    results = await attempt(
        send,
        "s",
        [event(letter) for letter in letters],
        limit=settings.send_timeout(),
        deadlines=Deadlines(LoopClock()),
    )
    return results, asyncio.get_running_loop().time()


def reasons(results: Sequence[AttemptResult]) -> list[str]:
    return ["" if error is None else str(error) for _, error in results]


class Slow(BatchDestination):
    """Answers each part after a while."""

    takes_s: Callable[[str], float] = staticmethod(lambda _: REQUEST_S)
    _timeout_s = TIMEOUT_S

    async def _send_part(self, entries: Sequence[Entry]) -> Outcomes:
        await asyncio.sleep(self.takes_s("".join(entry.content for entry in entries)))
        return await super()._send_part(entries)


def slow(chains: Sequence[str], say: Callable[[str], Outcomes] = taken) -> Slow:
    destination = Slow(chains, say)
    destination._timeout_s = TIMEOUT_S
    return destination


@pytest.mark.parametrize("chains", [["a b c d", "ef gh"], ["ab cd ef gh"]])
async def test_each_part_of_a_chain_has_the_whole_timeout(chains: list[str]) -> None:
    results, took_s = await tried(slow(chains).send_batch)
    assert reasons(results) == [""] * len(LETTERS)
    assert took_s == pytest.approx(4 * REQUEST_S)


async def test_a_refused_part_has_the_time_that_its_halves_take() -> None:
    destination = slow([LETTERS], fails("c", Refused("not c")))
    results, _ = await tried(destination.send_batch)
    assert reasons(results) == ["", "", "not c", "", "", "", "", ""]
    assert len(destination.parts) == 7


async def test_a_silent_destination_is_sent_no_further_part() -> None:
    destination = slow(["ab cd ef gh"])
    destination.takes_s = lambda part: REQUEST_S if part == "ab" else 3600
    results, took_s = await tried(destination.send_batch)
    assert reasons(results) == ["", "", *["no answer within 10 s"] * 6]
    assert took_s == pytest.approx(REQUEST_S + TIMEOUT_S)
    assert destination.parts == ["ab"]


async def test_a_sink_that_opens_no_request_has_its_timeout_once() -> None:
    async def send(_: Sequence[Event]) -> Outcomes:
        await asyncio.sleep(3600)
        return []

    results, took_s = await tried(send)
    assert set(reasons(results)) == {"no answer within 11 s"}
    assert took_s == pytest.approx(11, abs=0.2)


class Breaking(Connection):
    """Breaks off because of one message, so that each has to go alone."""

    async def publish(self, messages: Sequence[dict[str, Any]]) -> None:
        await asyncio.sleep(REQUEST_S)
        if len(messages) == 1:
            await super().publish(messages)


class BreakingSink(DoubleSink):
    def __init__(self) -> None:
        super().__init__()
        self._timeout_s = TIMEOUT_S

    async def _connect(self, replaced: Connection | None) -> Connection:
        self.opened.append(Breaking(self.answers))
        return self.opened[-1]


async def test_messages_that_are_published_again_alone_have_the_timeout_each() -> None:
    sink = BreakingSink()
    results, took_s = await tried(sink.send_batch)
    await sink.close()
    assert reasons(results) == [""] * len(LETTERS)
    assert took_s == pytest.approx((1 + len(LETTERS)) * REQUEST_S)


async def test_a_restart_reaches_the_timeouts_around_it() -> None:
    async def send(_: Sequence[Event]) -> Outcomes:
        async with RequestTimeout(TIMEOUT_S), RequestTimeout(TIMEOUT_S):
            for _round in range(3):
                await asyncio.sleep(REQUEST_S)
                restart()
        return [SinkResponse()]

    results, _ = await tried(send, "a")
    assert reasons(results) == [""]


async def test_a_timeout_that_has_ended_does_not_begin_anew() -> None:
    async with RequestTimeout(TIMEOUT_S) as ended:
        pass
    ended.restart()


async def test_a_timeout_that_is_over_does_not_begin_anew() -> None:
    async with RequestTimeout(TIMEOUT_S) as timeout:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            restart()
    assert timeout.expired()
    assert current_timeout.get() is None
    restart()


async def test_a_request_is_late_by_its_own_time_and_no_other() -> None:
    async def ask() -> None:
        async with RequestTimeout(TIMEOUT_S):
            async with RequestTimeout(REQUEST_S):
                await asyncio.sleep(1)
            await asyncio.sleep(3600)

    with pytest.raises(TimeoutError):
        await ask()
    assert asyncio.get_running_loop().time() == pytest.approx(TIMEOUT_S)
