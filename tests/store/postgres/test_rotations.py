"""A rotation of a secret on several relays: what one begins or keeps, the others see."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from relay.core.authentication import Authenticated, SigningSecret, SourceSettings
from relay.core.config_values import Duration, Secret
from relay.core.event import Event, Outcome
from relay.core.large_bodies import BodyWorker
from relay.receiver import secret_rotation
from relay.receiver.secret_rotation import SecretRotations
from relay.store import Store
from relay.store.quarantine import Rotation
from relay.telemetry.metrics import Metrics
from tests.app.reloading import body
from tests.caller import signed
from tests.conftest import NOW_MS, ManualClock
from tests.store.conformance import TAKES, accept
from tests.store.places import PostgresPlace
from tests.stub_server import until

OLD, NEW = "the-secret-that-was-before", "the-secret-that-comes-later"
QUARTER = Duration.parse("15m")


def source(secret: str) -> SourceSettings:
    return SourceSettings(
        name="main", path="/webhooks", secrets=(SigningSecret(secret=Secret(secret)),)
    )


class Admitting:
    """The intake, as far as a rotation uses it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.admitted: list[str] = []

    async def admit(self, authenticated: Authenticated) -> Outcome:
        event = cast("Event", authenticated.content)
        self.admitted.append(event.id)
        (outcome,) = await accept(self.store, event, verdicts=[TAKES])
        return outcome


class Member:
    """A relay's part in rotations."""

    def __init__(self, store: Store, clock: ManualClock) -> None:
        self.store = store
        self.intake = Admitting(store)
        self.rotations = SecretRotations(
            store.quarantine,
            [source(OLD)],
            intake=cast("Any", self.intake),
            worker=BodyWorker("requests"),
            metrics=Metrics(["main"], []),
            clock=clock,
        )

    async def receive(self, event_id: str) -> None:
        """Get a request that the new secret has signed."""
        content = body(event_id)
        value = signed(content, secret=NEW, at_s=NOW_MS // 1000)
        headers = [(b"service-signature", value.encode())]
        await self.rotations.quarantine(source(OLD), headers, content, NOW_MS)

    async def until_keeping(self) -> None:
        await until(lambda: "main" in self.rotations._held, what="the rotation on the other relay")


@asynccontextmanager
async def running(place: PostgresPlace, clock: ManualClock) -> AsyncIterator[Member]:
    async with place.open(clock) as store:
        member = Member(store, clock)
        await member.rotations.load()
        task = asyncio.create_task(member.rotations.run())
        try:
            yield member
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secret_rotation, "POLL_INTERVAL_S", 0.05)


async def waiting(member: Member) -> Any:
    rotation = await member.store.quarantine.rotation("main")
    return None if rotation is None else rotation.waiting


async def test_all_relays_keep_what_one_of_them_can_verify_later(
    postgres_place: PostgresPlace, clock: ManualClock
) -> None:
    async with running(postgres_place, clock) as one, running(postgres_place, clock) as other:
        await other.receive("early")
        await one.rotations.begin("main", QUARTER)
        await other.until_keeping()
        await other.receive("a")
        one.rotations.adopt([source(NEW)])
        await until(lambda: one.intake.admitted == ["a"], what="the verification on one relay")
        await other.receive("b")
        kept = "SELECT count(*) FROM relay.quarantine"
        await until(lambda: postgres_place.rows(kept) == [(0,)], what="that of a later request")
        assert (one.intake.admitted, other.intake.admitted) == (["a", "b"], [])
        assert postgres_place.rows("SELECT id FROM relay.events ORDER BY seq") == [("a",), ("b",)]
        rotation = await other.rotations.finish("main")
        assert rotation is not None
        assert (rotation.kept, rotation.verified, rotation.waiting) == (2, 2, 0)


async def test_a_request_that_comes_after_the_last_was_verified_is_verified_too(
    postgres_place: PostgresPlace, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(postgres_place, clock) as one, running(postgres_place, clock) as other:
        await one.rotations.begin("main", QUARTER)
        await other.until_keeping()
        quarantine, late = one.intake.store.quarantine, ["b"]
        rotation = quarantine.rotation

        async def after_another(name: str) -> Rotation | None:
            if one.intake.admitted and late:
                await other.receive(late.pop())
            return await rotation(name)

        monkeypatch.setattr(quarantine, "rotation", after_another)
        await other.receive("a")
        one.rotations.adopt([source(NEW)])
        await until(lambda: one.intake.admitted == ["a", "b"], what="the verification of both")


async def test_a_relay_finishes_what_another_has_begun(
    postgres_place: PostgresPlace, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secret_rotation, "POLL_INTERVAL_S", 60.0)
    async with running(postgres_place, clock) as one, running(postgres_place, clock) as other:
        await one.rotations.begin("main", QUARTER)
        await one.receive("a")
        other.rotations.adopt([source(NEW)])
        rotation = await other.rotations.finish("main")
        assert rotation is not None
        assert (rotation.until_ms, rotation.verified) == (NOW_MS, 1)
        assert await other.rotations.finish("unknown") is None


async def test_a_rotation_expires_on_all_relays(
    postgres_place: PostgresPlace, clock: ManualClock
) -> None:
    async with running(postgres_place, clock) as one, running(postgres_place, clock) as other:
        await one.rotations.begin("main", QUARTER)
        await other.until_keeping()
        await other.receive("a")
        clock.ms += 40 * 60_000
        await until(lambda: not one.rotations._held, what="the end on one relay")
        await until(lambda: not other.rotations._held, what="the end on the other one")
        assert await waiting(one) is None
        assert postgres_place.rows("SELECT count(*) FROM relay.quarantine") == [(0,)]
