"""The invariants hold in every simulated run, and a seed reproduces its run."""

import os
import subprocess
import sys

import pytest

from tests.delivery.simulation.simulation import violations

FEW, MANY = range(50), range(50, 500)


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


@pytest.mark.servers
def test_a_seed_reproduces_its_run_in_another_process() -> None:
    for seed in ("2", "3"):
        first, again = (simulate("--trace", seed, hash_seed=hash_seed) for hash_seed in ("1", "2"))
        assert "sends e1 " in first
        assert again == first


@pytest.mark.servers
def test_the_script_counts_seeds_and_violations() -> None:
    assert simulate("3").startswith("3 seeds, 0 violations")
