"""An ordered sink keeps each key's order through `kill -9` and a destination in any mood."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from random import Random

import httpx
import orjson

from tests.guarantees import ledger
from tests.guarantees.conftest import Say
from tests.guarantees.destinations import FAILING, Arrival, Destination, Mood
from tests.guarantees.process import Relay, http_client, until
from tests.guarantees.traffic import post

KILLS = 6
CONCURRENCY = 8
VIDEOS = [f"vid_{number:02}" for number in range(12)]
POISONED = "vid_poisoned"
PAUSE_S = 0.2
SLOWEST_S = 0.06
FAILS = 0.15


class Moody(Destination):
    """Takes any time to answer, fails now and then, and never takes a certain event."""

    def __init__(self, name: str, *, random: Random, never: str) -> None:
        super().__init__(name)
        self.never: str | None = never
        self.at_once: list[str] = []
        """Videos of which a request came while another was not answered yet."""
        self.most_at_once = 0
        self._random = random

    def mood_for(self, arrival: Arrival) -> Mood:
        under_way = [video_of(each) for each in self.open() if each is not arrival]
        self.most_at_once = max(self.most_at_once, len(under_way) + 1)
        if video_of(arrival) in under_way:
            self.at_once.append(video_of(arrival))
        if arrival.key[1] == self.never:
            return FAILING
        status = 500 if self._random.random() < FAILS else 200
        return Mood(status, delay_s=self._random.uniform(0, SLOWEST_S))

    def came(self, video: str) -> list[str]:
        """The events of a video in the order of their coming; what came again at once is one."""
        ids = (each.key[1] for each in self.arrivals if video_of(each) == video)
        return [event_id for event_id, _ in groupby(ids)]


def video_of(arrival: Arrival) -> str:
    return arrival.key[1].partition(".")[0]


class Sender:
    """Sends the events of each video one after the other, each until it is acknowledged."""

    def __init__(self, url: str, random: Random) -> None:
        self.acknowledged: defaultdict[str, list[str]] = defaultdict(list)
        self._url = url
        self._random = random

    async def flow(self, video: str, stop: asyncio.Event) -> None:
        async with http_client() as client:
            while not stop.is_set():
                event_id = f"{video}.{len(self.acknowledged[video]):04}"
                await self._send(client, video, event_id)
                self.acknowledged[video].append(event_id)
                await asyncio.sleep(self._random.uniform(0, PAUSE_S))

    async def _send(self, client: httpx.AsyncClient, video: str, event_id: str) -> None:
        document = {"id": event_id, "event": "video.watched", "data": {"video": {"id": video}}}
        while True:
            try:
                answer = await post(self._url, orjson.dumps(document), client=client)
            except httpx.TransportError:
                await asyncio.sleep(0.1)
                continue
            if answer.is_success:
                return


def _sink(destination: Destination) -> str:
    return (
        f'[[sink]]\nname = "{destination.name}"\ntype = "http"\nurl = "{destination.url}"\n'
        f'ordered = "video"\nconcurrency = {CONCURRENCY}\n'
        'retry = { first = "50ms", max = "200ms" }\n'
    )


async def test_each_video_stays_in_order_through_kills_and_a_poisoned_one_holds_up_no_other(
    tmp_path: Path, random: Random, say: Say
) -> None:
    first = f"{POISONED}.0000"
    async with (
        Moody("crm", random=random, never=first) as destination,
        Relay(tmp_path, sinks=_sink(destination)) as relay,
    ):
        sender = Sender(relay.url, random)
        await _live_through_kills(relay, sender, random)
        held = len(sender.acknowledged[POISONED])
        await until(lambda: ledger.pending(relay.store) == held, what="all but the poisoned video")
        assert destination.came(POISONED) == [first]
        _prove_order(destination, sender, VIDEOS)
        destination.never = None
        await until(lambda: not ledger.pending(relay.store), what="the end of the backlog")
        assert await relay.stop() == 0, relay.output()
    _prove_order(destination, sender, [*VIDEOS, POISONED])
    assert destination.at_once == []
    assert destination.most_at_once > CONCURRENCY / 2
    end = ledger.read(relay.store)
    assert (end.places("pending"), end.places("dead"), end.integrity) == (set(), set(), "ok")
    count = sum(map(len, sender.acknowledged.values()))
    say(
        f"{KILLS} kills: {count} events of {len(VIDEOS) + 1} videos in order, "
        f"{len(destination.arrivals)} requests, up to {destination.most_at_once} at once, "
        f"{held} held up behind one that failed for ever"
    )


async def _live_through_kills(relay: Relay, sender: Sender, random: Random) -> None:
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        for video in (*VIDEOS, POISONED):
            tasks.create_task(sender.flow(video, stop))
        for _ in range(KILLS):
            await relay.start()
            await asyncio.sleep(random.uniform(0.2, 1.5))
            await relay.kill()
        await relay.start()
        stop.set()


def _prove_order(destination: Moody, sender: Sender, videos: Sequence[str]) -> None:
    came = {video: destination.came(video) for video in videos}
    assert came == {video: sender.acknowledged[video] for video in videos}
