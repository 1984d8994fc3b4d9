"""Disturbances at random times: what a cluster and its database may suffer."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from relay.core.cluster.statements import Acquire, Beat
from tests.core.cluster.relay import Relay

if TYPE_CHECKING:
    from tests.core.cluster.world import World


_PAST_TAKEOVER_S = 14.0
"""Long enough that another member takes over meanwhile."""


def plan(world: "World") -> float:
    """Start the members and schedule the disturbances; return when all of them are over."""
    random = world.random
    for _ in range(random.choice((1, 2, 2, 3))):
        world.clock.at(random.uniform(0, 2), world.join)
    last = 5.0
    for _ in range(random.choice((1, 2, 2, 3))):
        disturb = random.choices(_KINDS, _WEIGHTS)[0]
        start = random.uniform(3, 12)
        duration_s = random.choice((0.5, 3.0, 12.0, 18.0)) * random.uniform(0.3, 1)
        last = max(last, start + duration_s + _AFTERMATH_S.get(disturb, 0))
        world.clock.at(start, disturb, world, duration_s)
    return last + 0.5


def _alive(world: "World") -> list[Relay]:
    return [relay for relay in world.relays if not (relay.is_dead or relay.is_leaving)]


def _victim(world: "World") -> Relay | None:
    alive = _alive(world)
    return world.random.choice(alive) if alive else None


def _pause_any(world: "World", duration_s: float) -> None:
    _pause(world, duration_s, _victim(world))


def _pause(world: "World", duration_s: float, relay: Relay | None) -> None:
    if relay is not None and not relay.is_paused:
        world.log(f"{relay.name} is stopped for {duration_s:.1f} s")
        relay.pause()
        world.clock.after(duration_s, _resume, world, relay)


def _resume(world: "World", relay: Relay) -> None:
    if not relay.is_dead:
        world.log(f"{relay.name} continues")
        relay.resume()


def _kill(world: "World", duration_s: float) -> None:
    relay = _victim(world)
    if relay is not None:
        world.log(f"{relay.name} is killed")
        relay.kill()
        world.invariants.killed(relay)
        if len(_alive(world)) == 0 or world.random.random() < 0.5:
            world.clock.after(duration_s, world.join)


def _kill_midway(world: "World", duration_s: float) -> None:
    """Kill a member whose settlement is stuck in the database."""
    _stall_settles(world, _PAST_TAKEOVER_S)
    world.clock.after(world.random.uniform(0.5, 3), _kill, world, duration_s)


def _leave(world: "World", duration_s: float) -> None:
    relay = _victim(world)
    if relay is not None and not relay.is_paused:
        world.log(f"{relay.name} leaves")
        relay.leave()
        world.clock.after(duration_s, world.join)


def _join(world: "World", duration_s: float) -> None:
    world.join()


def _partition_any(world: "World", duration_s: float) -> None:
    _partition(world, duration_s, _victim(world))


def _partition(world: "World", duration_s: float, relay: Relay | None) -> None:
    if relay is not None:
        world.log(f"{relay.name} does not reach the database for {duration_s:.1f} s")
        relay.unreachable = True
        world.clock.after(duration_s, _reconnect, world, relay)


def _reconnect(world: "World", relay: Relay) -> None:
    relay.unreachable = False
    relay.well_since = world.clock.now


def _during(world: "World", duration_s: float, text: str, undo: Callable[["World"], None]) -> None:
    """Undo a disturbance of the database or the network after its time."""
    world.log(f"{text} for {duration_s:.1f} s")
    world.database_well_since = world.clock.now + duration_s + 8
    world.clock.after(duration_s, undo, world)


def _lose_messages(world: "World", duration_s: float) -> None:
    world.network.loss = world.random.choice((0.1, 0.3))
    _during(world, duration_s, "messages are lost", _restore_network)


def _slow_down(world: "World", duration_s: float) -> None:
    world.network.latency_s = world.random.choice((0.3, 1.0, 2.0))
    _during(world, duration_s, "the network is slow", _restore_network)


def _pause_unanswered(world: "World", duration_s: float) -> None:
    """Stop a member between a renewal or an acquisition and its answer, then cut it off."""

    def stop(relay: Relay, statement: object) -> None:
        if isinstance(statement, Acquire) or (isinstance(statement, Beat) and statement.leases):
            world.on_commit = None
            _pause(world, pause_s, relay)
            world.clock.after(pause_s, _partition, world, _PAST_TAKEOVER_S, relay)

    pause_s = world.random.uniform(1, 6)
    world.on_commit = stop
    world.join()


def _restore_network(world: "World") -> None:
    world.network.loss = 0.0
    world.network.latency_s = 0.004


def _stall_settles(world: "World", duration_s: float) -> None:
    world.database.settles_stall_until = world.clock.now + duration_s
    _during(world, duration_s, "settlements wait for a row", lambda world: None)


def _restart_database(world: "World", duration_s: float) -> None:
    if world.database.is_up:
        world.database.crash()
        _during(world, min(duration_s, 5.0), "the database is down", start_database)


def start_database(world: "World") -> None:
    if not world.database.is_up:
        world.database.restart()


def _fail_over(world: "World", duration_s: float) -> None:
    if world.database.is_up:
        if world.random.random() < 0.3:
            world.database.lag_s = 1.0
        world.clock.after(1.0, _promote_after_crash, world, duration_s)
        world.database_well_since = world.clock.now + 20


def _promote_after_crash(world: "World", duration_s: float) -> None:
    if world.database.is_up:
        world.database.crash()
        _during(world, min(duration_s, 3.0), "the primary is dead", _promote)


def _promote(world: "World") -> None:
    database = world.database
    if not database.is_up:
        database.promote(database.clock_offset + world.random.choice((0, 0, 0.5, -3, 30, -600)))
        database.lag_s = 0.002
        world.log("the standby is promoted")


def _lose_standby(world: "World", duration_s: float) -> None:
    world.database.lose_standby()
    _during(world, duration_s, "the standby is away", lambda world: world.database.regain_standby())


def _fail_twice(world: "World", duration_s: float) -> None:
    """The standby is away, the primary restarts, then fails for good."""
    world.database.lose_standby()
    world.log("the standby is away until its promotion")
    world.clock.after(2.0, _restart_database, world, 0.5)
    world.clock.after(2.5 + world.random.uniform(0.5, 5), _promote_after_crash, world, 0.5)
    world.database_well_since = world.clock.now + 30


def _set_clock(world: "World", duration_s: float) -> None:
    step_s = world.random.choice((-3600.0, -20.0, -4.0, 4.0, 9.0, 20.0, 3600.0))
    world.database.clock_offset += step_s
    _during(world, 0.0, f"the database's clock is set by {step_s} s", lambda world: None)


_KINDS: list[Callable[["World", float], None]] = [
    _pause_any,
    _kill,
    _kill_midway,
    _leave,
    _join,
    _partition_any,
    _lose_messages,
    _slow_down,
    _pause_unanswered,
    _restart_database,
    _fail_over,
    _lose_standby,
    _fail_twice,
    _set_clock,
]
_AFTERMATH_S: dict[Callable[["World", float], None], float] = {
    _kill_midway: 15.0,
    _pause_unanswered: 21.0,
    _fail_over: 5.0,
    _fail_twice: 10.0,
}
"""Longest times for which disturbances go on beyond their durations."""

_WEIGHTS = [4, 5, 2, 2, 2, 2, 1, 1, 4, 2, 3, 1, 2, 2]
