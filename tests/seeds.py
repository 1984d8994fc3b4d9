"""Simulations in which all follows from a seed, run one by one or by the thousand."""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from multiprocessing import Pool
from typing import Any

World = Callable[..., Any]
"""Takes a seed and `trace`; its `run` raises Violation."""


class Violation(AssertionError):
    """An invariant does not hold."""


def violation(seed: int, world: World) -> str | None:
    """Run one seed; return what went wrong."""
    try:
        world(seed).run()
    except Violation as error:
        return f"seed {seed}: {error}"
    return None


def violations(seeds: Iterable[int], world: World) -> list[str]:
    return [text for seed in seeds if (text := violation(seed, world)) is not None]


def main(
    world: World, run: Callable[[Sequence[int]], list[str]], *, seeds: int, chunk: int, about: str
) -> int:
    """Run many seeds in several processes, or print one; `run` does as `violations`."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("seeds", nargs="?", type=int, default=seeds, metavar="SEEDS")
    parser.add_argument("--trace", type=int, metavar="SEED", help="print the run of one seed")
    options = parser.parse_args()
    if options.trace is not None:
        world(options.trace, trace=True).run()
        return 0
    start = time.monotonic()
    chunks = [
        range(first, min(first + chunk, options.seeds)) for first in range(0, options.seeds, chunk)
    ]
    failed = 0
    with Pool() as pool:
        for texts in pool.imap_unordered(run, chunks):
            failed += len(texts)
            print(*texts, sep="\n", end="\n" if texts else "")  # noqa: T201 - a script
    minutes = (time.monotonic() - start) / 60
    print(f"{options.seeds} seeds, {failed} violations, {minutes:.1f} minutes")  # noqa: T201
    return 1 if failed else 0


def simulate(module: str, *arguments: str, hash_seed: str = "0") -> str:
    """Run a simulation's script; return what it prints."""
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        text=True,
        timeout=60,
    ).stdout


def assert_reproducible(module: str, seeds: Sequence[str], said: str) -> None:
    """Assert that a seed prints the same run in each process, and does what is to be seen."""
    for seed in seeds:
        first, again = (
            simulate(module, "--trace", seed, hash_seed=hash_seed) for hash_seed in ("1", "2")
        )
        assert said in first
        assert again == first
