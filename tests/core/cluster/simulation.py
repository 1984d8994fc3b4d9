"""Run the simulation: python -m tests.core.cluster.simulation [SEEDS] [--trace SEED]."""

import sys
from collections.abc import Iterable

from tests import seeds
from tests.core.cluster.world import World


def violations(numbers: Iterable[int]) -> list[str]:
    return seeds.violations(numbers, World)


if __name__ == "__main__":
    sys.exit(seeds.main(World, violations, seeds=100_000, chunk=250, about=str(__doc__)))
