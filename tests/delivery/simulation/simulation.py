"""Run the simulation: python -m tests.delivery.simulation.simulation [SEEDS] [--trace SEED]."""

import argparse
import sys
import time
from collections.abc import Iterable
from multiprocessing import Pool

from tests.delivery.simulation.invariants import Violation
from tests.delivery.simulation.world import World

CHUNK = 20


def violation(seed: int, world_class: type[World] = World) -> str | None:
    """Run one seed; return what went wrong."""
    try:
        world_class(seed).run()
    except Violation as error:
        return f"seed {seed}: {error}"
    return None


def violations(seeds: Iterable[int]) -> list[str]:
    return [text for seed in seeds if (text := violation(seed)) is not None]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seeds", nargs="?", type=int, default=2_000, metavar="SEEDS")
    parser.add_argument("--trace", type=int, metavar="SEED", help="print the run of one seed")
    options = parser.parse_args()
    if options.trace is not None:
        World(options.trace, trace=True).run()
        return 0
    start = time.monotonic()
    chunks = [
        range(first, min(first + CHUNK, options.seeds)) for first in range(0, options.seeds, CHUNK)
    ]
    failed = 0
    with Pool() as pool:
        for texts in pool.imap_unordered(violations, chunks):
            failed += len(texts)
            print(*texts, sep="\n", end="\n" if texts else "")  # noqa: T201 - a script
    minutes = (time.monotonic() - start) / 60
    print(f"{options.seeds} seeds, {failed} violations, {minutes:.1f} minutes")  # noqa: T201
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
