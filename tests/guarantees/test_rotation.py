"""A sender that changes its secret at once, and an operator who is late: nothing lost or twice."""

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest

from relay.core.config_values import Secret
from tests.guarantees import ledger
from tests.guarantees.conftest import Say
from tests.guarantees.far_ends import FarEnd
from tests.guarantees.process import Relay, http_client, until
from tests.guarantees.traffic import Traffic
from tests.operator import ADMIN, TOKEN

SCALE = 1 / 60
"""A minute is a second, for the sender's waits and for the operator."""

OLD, NEW = "the-secret-of-before-the-change", "the-secret-of-after-the-change"
EVERY_S = 0.08
LEAD_S = 0.5
KILLED_AT_MIN = 2
SINK = '[[sink]]\nname = "crm"\ntype = "http"\nurl = "{}"\nevents = ["*", "webhook.test"]\n'


def minutes(count: float) -> float:
    return count * 60 * SCALE


async def ask(relay: Relay, verb: str = "", body: object = None) -> Any:
    """As `relay rotate` does it, without the time that starting a command takes."""
    async with http_client() as client:
        answer = await client.post(
            f"{relay.admin_url}/api/v1/sources/main/rotation{verb}",
            json=body,
            headers={"authorization": f"Bearer {TOKEN}"},
        )
    assert answer.status_code == httpx.codes.OK, answer.text
    return answer.json()


async def sleep_until(at_s: float) -> None:
    assert time.monotonic() < at_s, "the machine is too slow for this scale"
    await asyncio.sleep(at_s - time.monotonic())


async def flow(traffic: Traffic, stop: asyncio.Event) -> None:
    """A new event every now and then, each tried as often as the sender does it."""
    async with asyncio.TaskGroup() as sends:
        while not stop.is_set():
            sends.create_task(traffic.send())
            await asyncio.sleep(EVERY_S)


@pytest.mark.parametrize("late_min", [1, 9, 14])
async def test_no_event_is_lost_or_repeated_however_late_the_new_secret_comes(
    tmp_path: Path, random: Random, say: Say, late_min: int
) -> None:
    secret = tmp_path / "secret"
    secret.write_text(OLD, encoding="utf-8")
    async with AsyncExitStack() as stack:
        crm = await stack.enter_async_context(FarEnd("crm"))
        relay = await stack.enter_async_context(
            Relay(tmp_path, sinks=SINK.format(crm.url), rest=ADMIN, secret=f"file:{secret}")
        )
        await relay.start()
        traffic = await stack.enter_async_context(
            Traffic(relay.url, time_scale=SCALE, random=random)
        )
        traffic._sender.secret = Secret(OLD)
        stop = asyncio.Event()
        flowing = asyncio.create_task(flow(traffic, stop))
        await asyncio.sleep(LEAD_S)
        armed = await ask(relay, body={"duration_ms": round(minutes(15) * 1000)})
        assert armed["state"] == "armed"
        traffic._sender.secret = Secret(NEW)
        begun_s = time.monotonic()
        if late_min > KILLED_AT_MIN:
            await sleep_until(begun_s + minutes(KILLED_AT_MIN))
            await relay.kill()
            await relay.start()
        await sleep_until(begun_s + minutes(late_min))
        secret.write_text(NEW, encoding="utf-8")
        finished = await ask(relay, "/finish")
        await asyncio.sleep(LEAD_S)
        stop.set()
        await flowing
        await until(lambda: not ledger.pending(relay.store), what="all deliveries")
        assert await relay.stop() == 0, relay.output()
    _prove(traffic, ledger.read(relay.store), crm)
    given_up = traffic.posted.keys() - traffic.acknowledged
    # What the sender has given up is what only the quarantine can bring back.
    assert bool(given_up) == (late_min == 14)
    assert (finished["waiting"], finished["dropped"]) == (0, 0)
    assert finished["kept"] == finished["verified"] > 0
    say(
        f"the new secret came after {late_min} min: {len(traffic.posted)} events, none lost, none "
        f"delivered twice; {finished['kept']} requests kept, of which {finished['duplicates']} "
        f"were tries of the same events; the sender had given up {len(given_up)}"
    )


def _prove(traffic: Traffic, end: ledger.Ledger, crm: FarEnd) -> None:
    assert end.integrity == "ok"
    assert end.events == traffic.posted.keys()
    assert set(end.deliveries.values()) == {"delivered"}
    assert crm.taken.keys() == traffic.posted.keys()
    assert set(crm.taken.values()) == {1}
    assert len(crm.arrivals) == len(traffic.posted)
    for arrival in crm.arrivals:
        assert arrival.body == traffic.posted[arrival.key].body
