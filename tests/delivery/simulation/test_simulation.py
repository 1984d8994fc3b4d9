"""The invariants hold in every simulated run, and a seed reproduces its run."""

import asyncio
import os
import subprocess
import sys

import pytest

from tests.delivery.simulation import world
from tests.delivery.simulation.simulation import violation, violations
from tests.delivery.simulation.world import World

FEW, MANY = range(50), range(50, 250)


def simulate(*arguments: str, hash_seed: str = "0") -> str:
    return subprocess.run(
        [sys.executable, "-m", "tests.delivery.simulation.simulation", *arguments],
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        text=True,
        timeout=60,
    ).stdout


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
    assert violation(7) == "seed 7: it hangs: it has not ended within 0.2 real seconds"


@pytest.mark.servers
def test_a_seed_reproduces_its_run_in_another_process() -> None:
    for seed in ("2", "3"):
        first, again = (simulate("--trace", seed, hash_seed=hash_seed) for hash_seed in ("1", "2"))
        assert "sends e" in first
        assert again == first


@pytest.mark.servers
def test_the_script_counts_seeds_and_violations() -> None:
    assert simulate("3").startswith("3 seeds, 0 violations")
