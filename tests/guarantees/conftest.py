"""What the proofs share: dice that can be thrown again, and a line in the run's report."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random, SystemRandom

import pytest

from tests import scratch

Say = Callable[[str], None]


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder on a disk, as operators have it."""
    with scratch.on_disk() as folder:
        yield Path(folder)


@pytest.fixture
def random() -> Random:
    """Dice with a seed of the day, which a failing test shows."""
    seed = SystemRandom().randrange(1 << 32)
    sys.stdout.write(f"the dice's seed is {seed}\n")
    return Random(seed)


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """Write a line that is seen although the test passes."""

    def write(line: str) -> None:
        with capsys.disabled():
            sys.stdout.write(f"\n  {line}\n")

    return write
