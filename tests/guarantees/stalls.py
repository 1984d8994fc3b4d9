"""When the machine stood still by itself: its disk, its processors, or this process."""

import os
import threading
import time
from pathlib import Path
from typing import Self

EVERY_S = 0.02
NOTED_S = 0.05


class Stalls:
    """Writes a little to the disk over and over, and notes when that took too long."""

    def __init__(self, folder: Path) -> None:
        """`folder` lies on the disk that is to be watched."""
        self._path = folder / "stalls"
        self._spans: list[tuple[float, float]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def touch(self, begin_s: float, end_s: float) -> bool:
        """Whether the machine stood still for a part of that time, on the monotonic clock."""
        return any(begin <= end_s and begin_s <= end for begin, end in self._spans)

    def _watch(self) -> None:
        with self._path.open("wb", buffering=0) as file:
            ended = False
            while not ended:
                begin_s = time.monotonic()
                ended = self._ended.wait(EVERY_S)
                file.write(b"x")
                os.fsync(file.fileno())
                end_s = time.monotonic()
                if end_s - begin_s > EVERY_S + NOTED_S:
                    self._spans.append((begin_s, end_s))
