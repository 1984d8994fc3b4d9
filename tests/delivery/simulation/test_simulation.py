"""The invariants hold in every simulated run, and a seed reproduces its run."""

import asyncio

import pytest

from tests.delivery.simulation import simulation, world
from tests.delivery.simulation.simulation import violations
from tests.delivery.simulation.world import World
from tests.seeds import assert_reproducible, simulate, violation

FEW, MANY = range(50), range(50, 200)


@pytest.mark.parametrize("seeds", [FEW, pytest.param(MANY, marks=pytest.mark.long)])
def test_the_invariants_hold(seeds: range) -> None:
    assert violations(seeds) == []


@pytest.mark.parametrize("waits", [True, False])
def test_a_run_that_hangs_is_a_violation(monkeypatch: pytest.MonkeyPatch, *, waits: bool) -> None:
    async def hang(self: World) -> None:
        while True:
            await asyncio.sleep(1)

    async def block(self: World) -> None:
        while True:
            pass

    monkeypatch.setattr(world, "REAL_S", 0.2)
    monkeypatch.setattr(World, "_run", hang if waits else block)
    assert violation(7, World) == "seed 7: it hangs: it has not ended within 0.2 real seconds"


@pytest.mark.servers
def test_a_seed_reproduces_its_run_in_another_process() -> None:
    assert_reproducible(simulation.__name__, ("2", "3"), "sends e")


@pytest.mark.servers
def test_the_script_counts_seeds_and_violations() -> None:
    assert simulate(simulation.__name__, "3").startswith("3 seeds, 0 violations")
