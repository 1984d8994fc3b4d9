"""The invariants hold in every simulated run, and a seed reproduces its run."""

import pytest

from tests.core.cluster import simulation
from tests.core.cluster.simulation import violations
from tests.seeds import assert_reproducible, simulate

FEW, MANY = range(200), range(200, 2_000)


@pytest.mark.parametrize("seeds", [FEW, pytest.param(MANY, marks=pytest.mark.long)])
def test_the_invariants_hold(seeds: range) -> None:
    assert violations(seeds) == []


@pytest.mark.servers
def test_a_seed_reproduces_its_run_in_another_process() -> None:
    assert_reproducible(simulation.__name__, ("3", "20"), "acquires")


@pytest.mark.servers
def test_the_script_counts_seeds_and_violations() -> None:
    assert simulate(simulation.__name__, "5").startswith("5 seeds, 0 violations")
