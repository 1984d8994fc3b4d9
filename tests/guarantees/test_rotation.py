"""A sender that changes its secret at once, and an operator who is late: nothing lost or twice."""

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from relay.core.clock import SystemClock
from relay.core.delivery_rules import WAITS_S
from relay.sandbox.model import Attempt
from tests.guarantees import ledger
from tests.guarantees.conftest import Say
from tests.guarantees.destinations import Destination, Key
from tests.guarantees.process import Relay, http_client, until
from tests.operator import ADMIN, TOKEN
from tests.sandbox.service import Served, serving

SCALE = 1 / 60
"""A minute is a second, for the sender's waits and for the operator."""

ATTEMPTS = len(WAITS_S) + 1
EVERY_S = 0.16
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


class Sent:
    """What the service has sent: every event's body, and how each event ended."""

    def __init__(self, served: Served) -> None:
        self.bodies: dict[Key, bytes] = {}
        self.acknowledged: set[Key] = set()
        self.given_up: set[Key] = set()
        served.sandbox.webhooks.watch = self._attempted

    def _attempted(self, attempt: Attempt, body: bytes) -> None:
        key = "main", attempt.event_id
        assert self.bodies.setdefault(key, body) == body
        if attempt.state == "delivered":
            self.acknowledged.add(key)
        elif attempt.number == ATTEMPTS:
            self.given_up.add(key)

    def is_over(self) -> bool:
        return self.acknowledged | self.given_up == self.bodies.keys()


async def publish(served: Served, stop: asyncio.Event) -> None:
    """Add videos, with two events each, now and then."""
    while not stop.is_set():
        await served.add()
        await asyncio.sleep(EVERY_S)


@pytest.mark.parametrize("late_min", [1, 9, 14])
async def test_no_event_is_lost_or_repeated_however_late_the_new_secret_comes(
    tmp_path: Path, say: Say, late_min: int
) -> None:
    secret = tmp_path / "secret"
    async with AsyncExitStack() as stack:
        crm = await stack.enter_async_context(Destination("crm"))
        served = await stack.enter_async_context(serving(clock=SystemClock(), speed=1 / SCALE))
        relay = await stack.enter_async_context(
            Relay(tmp_path, sinks=SINK.format(crm.url), rest=ADMIN, secret=f"file:{secret}")
        )
        endpoint = (await served.register(relay.url))["id"]
        secret.write_text(served.sandbox.workspace.endpoints[endpoint].secret, encoding="utf-8")
        await relay.start()
        sent, stop = Sent(served), asyncio.Event()
        publishing = asyncio.create_task(publish(served, stop))
        await asyncio.sleep(LEAD_S)
        armed = await ask(relay, body={"duration_ms": round(minutes(15) * 1000)})
        assert armed["state"] == "armed"
        answer = await served.ask("POST", f"/v1/webhooks/{endpoint}/rotate-secret")
        begun_s = time.monotonic()
        if late_min > KILLED_AT_MIN:
            await sleep_until(begun_s + minutes(KILLED_AT_MIN))
            await relay.kill()
            await relay.start()
        await sleep_until(begun_s + minutes(late_min))
        secret.write_text(answer.json()["secret"], encoding="utf-8")
        finished = await ask(relay, "/finish")
        await asyncio.sleep(LEAD_S)
        stop.set()
        await publishing
        await until(sent.is_over, what="the end of all tries")
        await until(lambda: not ledger.pending(relay.store), what="all deliveries")
        assert await relay.stop() == 0, relay.output()
    _prove(sent, ledger.read(relay.store), crm)
    # What the sender has given up is what only the quarantine can bring back.
    assert bool(sent.given_up) == (late_min == 14)
    assert (finished["waiting"], finished["dropped"]) == (0, 0)
    assert finished["kept"] == finished["verified"] > 0
    say(
        f"the new secret came after {late_min} min: {len(sent.bodies)} events, none lost, none "
        f"delivered twice; {finished['kept']} requests kept, of which {finished['duplicates']} "
        f"were tries of the same events; the sender had given up {len(sent.given_up)}"
    )


def _prove(sent: Sent, end: ledger.Ledger, crm: Destination) -> None:
    assert end.integrity == "ok"
    assert end.events == sent.bodies.keys()
    assert set(end.deliveries.values()) == {"delivered"}
    assert crm.taken.keys() == sent.bodies.keys()
    assert set(crm.taken.values()) == {1}
    assert len(crm.arrivals) == len(sent.bodies)
    for arrival in crm.arrivals:
        assert arrival.body == sent.bodies[arrival.key]
