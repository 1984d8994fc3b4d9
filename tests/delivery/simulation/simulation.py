"""Run the simulation: python -m tests.delivery.simulation.simulation [SEEDS] [--trace SEED]."""

import sys
from collections.abc import Iterable

from tests import seeds
from tests.delivery.simulation.world import World


def violations(numbers: Iterable[int]) -> list[str]:
    return seeds.violations(numbers, World)


if __name__ == "__main__":
    sys.exit(seeds.main(World, violations, seeds=2_000, chunk=20, about=str(__doc__)))
