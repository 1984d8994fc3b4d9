"""What a run consists of, drawn from its seed: sinks, relays, and what happens to them."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import TYPE_CHECKING, Any

from relay.core.cluster.timing import RENEW_S
from relay.core.config_values import Duration, Rate
from relay.core.retry import RetryPolicy
from relay.core.sink import BatchSettings, SinkSettings
from tests.delivery.simulation.destination import MODES, Destination

if TYPE_CHECKING:
    from tests.delivery.simulation.world import World

_RETRY = RetryPolicy(first=Duration.parse("200ms"), max=Duration.parse("2s"))
_TIMEOUT = Duration.parse("1s")


def destination(name: str, random: Random) -> tuple[Destination, float]:
    """Draw a destination, and the share of the events that it gets."""
    kind = random.choice(("fast", "fast", "slow", "ordered", "rated", "batches"))
    values: dict[str, Any] = {"retry": _RETRY, "timeout": _TIMEOUT}
    settings: type[SinkSettings] = SinkSettings
    duration_s, share = random.choice((0.002, 0.01)), 0.6
    match kind:
        case "fast":
            values["concurrency"] = random.choice((1, 4, 8))
        case "slow":
            values["concurrency"] = random.choice((1, 2))
            duration_s, share = random.choice((0.1, 0.4)), 0.05
        case "ordered":
            values |= {"concurrency": random.choice((1, 4)), "ordered": "video"}
            duration_s, share = random.choice((0.005, 0.05)), 0.5
        case "rated":
            values |= {"rate": Rate(random.choice((5, 20))), "concurrency": 2}
            share = 0.1
        case _:
            settings, duration_s = BatchSettings, 0.02
            values["concurrency"] = random.choice((4, 16))
    return (
        Destination(settings(name=name, type=kind, **values), random, duration_s=duration_s),
        share,
    )


async def play(world: "World", until_s: float) -> None:
    """Let things happen at random times."""
    kinds = _SHARED if world.is_shared else _ALONE
    async with asyncio.TaskGroup() as group:
        for _ in range(world.random.randint(1, 4)):
            at_s = world.random.uniform(0.3, until_s)
            group.create_task(_at(at_s, world, world.random.choice(kinds)))


async def _at(at_s: float, world: "World", disturb: Callable[["World"], Awaitable[None]]) -> None:
    await asyncio.sleep(at_s - world.now_s)
    await disturb(world)


async def _stop(world: "World") -> None:
    if (member := world.any_member()) is not None:
        world.log(f"{member.name} stops")
        if world.is_shared and world.serving == [member]:
            # The stop waits until another relay has taken its sinks over.
            world.join()
        await world.stop(member)
        await asyncio.sleep(world.random.uniform(0, 1))
        world.join()


async def _kill(world: "World") -> None:
    if (member := world.any_member()) is not None:
        world.log(f"{member.name} is killed")
        await world.kill(member)


async def _hand_over(world: "World") -> None:
    sink = world.any_sink()
    if (owner := world.owner(sink)) is not None:
        world.log(f"{owner.name} hands {sink} over")
        await world.hand_over(sink, owner)


async def _lose(world: "World") -> None:
    """Let a lease expire; its holder knows after its next heartbeat at the latest."""
    sink = world.any_sink()
    owner = world.owner(sink)
    if owner is not None and sink not in world.changing:
        world.log(f"{sink} is lost")
        world.changing.add(sink)
        world.disturb(sink)
        world.engine.own(sink, None)
        await asyncio.sleep(RENEW_S)
        owner.store.ownership.may_send(sink)


async def _pause(world: "World") -> None:
    sink = world.any_sink()
    world.log(f"{sink} is paused")
    await world.order(lambda member: member.supervisor.pause(sink))
    await asyncio.sleep(world.random.uniform(0.1, 2))
    world.log(f"{sink} is resumed")
    await world.order(lambda member: member.supervisor.resume(sink))


async def _retry(world: "World") -> None:
    sink = world.any_sink()
    world.log(f"{sink} is retried")
    await world.order(lambda member: member.supervisor.retry(sink, None))


async def _replay(world: "World") -> None:
    sink = world.any_sink()
    # An ordered replay has keys of its own, and the sink may have been ordered before a reload.
    if not world.sender.is_ordered(sink):
        world.log(f"events are replayed to {sink}")
        world.replay(sink)


async def _reload(world: "World") -> None:
    """Add a sink, or replace one."""
    replaced = world.random.random() < 0.5
    name = world.any_sink() if replaced else f"sink{len(world.destinations) + 1}"
    if name in world.changing:
        return
    world.log(f"{name} is {'replaced' if replaced else 'added'} by a reload")
    await world.reload(name)


async def _fail(world: "World") -> None:
    sink = world.any_sink()
    failing = world.destinations[sink]
    failing.mode = world.random.choice(MODES)
    world.log(f"{sink}: {failing.mode}")
    await asyncio.sleep(world.random.uniform(0.2, 3))
    failing.mode = "well"
    world.log(f"{sink}: well")


async def _refuse_all(world: "World") -> None:
    sink = world.any_sink()
    refusing = world.destinations[sink]
    refusing.mode = "refuses all"
    world.log(f"{sink} refuses all")
    await asyncio.sleep(world.random.uniform(0.5, 6))
    refusing.mode = "well"
    world.log(f"{sink}: well")


async def _set_clock(world: "World") -> None:
    if (member := world.any_member()) is not None:
        step_ms = world.random.choice(world.clock_steps_ms)
        world.log(f"the clock of {member.name} is set by {step_ms} ms")
        member.machine.error_ms += step_ms
        if not world.is_shared:
            world.clock_was_set()


async def _set_database_clock(world: "World") -> None:
    step_ms = world.random.choice(world.clock_steps_ms)
    world.log(f"the clock of the database is set by {step_ms} ms")
    world.set_back_s += max(0, -step_ms) / 1000
    world.engine.clock.error_ms += step_ms
    world.clock_was_set()


async def _cut(world: "World") -> None:
    if (member := world.any_member()) is not None:
        seconds = world.random.uniform(0.2, 1.5)
        world.log(f"{member.name} does not reach the store for {seconds:.1f} s")
        await world.cut(member, seconds)


_ALONE = (_stop, _kill, _pause, _retry, _reload, _fail, _fail, _refuse_all, _set_clock)
_SHARED = (*_ALONE, _hand_over, _hand_over, _lose, _cut, _replay, _set_clock, _set_database_clock)
