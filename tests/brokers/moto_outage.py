"""Outages of SQS: moto loses its queues with its process, so that it is cut off instead of killed.

moto counts its messages with each that comes, so that a consumer has to keep the queue short.
"""

import sys
from pathlib import Path
from threading import Event, Thread
from typing import Any

from tests.brokers.moto_sqs import MotoSqs
from tests.brokers.program import Program

CONSUMERS = 4
_PAUSE_S = 0.02


class DoorProgram(Program):
    """A door in a process of its own."""

    name = sys.executable

    def __init__(self, folder: Path, server_port: int) -> None:
        super().__init__(folder)
        self._server_port = server_port

    def command(self) -> list[str]:
        script = Path(__file__).with_name("door.py")
        return [self.name, str(script), str(self.port), str(self._server_port)]


class SqsBehindDoor:
    """The door is what is killed, the server what is frozen."""

    def __init__(self, folder: Path) -> None:
        self._server = MotoSqs(folder)
        self._door = DoorProgram(folder, self._server.port)
        self._is_over = Event()
        self._consumers = [Thread(target=self._consume) for _ in range(CONSUMERS)]
        self._taken: list[dict[str, Any]] = []

    def start(self) -> None:
        self._server.start()
        self._door.start()
        self.queue_url = self._server.put_queue("relay")
        self.endpoint_url = f"http://127.0.0.1:{self._door.port}"
        for consumer in self._consumers:
            consumer.start()

    def kill(self) -> None:
        self._door.kill()

    def restart(self) -> None:
        self._door.restart()

    def freeze(self) -> None:
        self._server.freeze()

    def thaw(self) -> None:
        self._server.thaw()

    def read(self) -> list[dict[str, Any]]:
        """Take the rest, and list everything that the consumer has had."""
        self._end_consumers()
        self._taken += self._server.read(self.queue_url)
        return self._taken

    def stop(self) -> None:
        if any(consumer.is_alive() for consumer in self._consumers):
            self._server.thaw()  # or they would wait for it
        self._end_consumers()
        self._door.stop()
        self._server.stop()

    def _consume(self) -> None:
        while not self._is_over.is_set():
            taken = self._server.take(self.queue_url)
            self._taken += taken
            if not taken:
                self._is_over.wait(_PAUSE_S)

    def _end_consumers(self) -> None:
        self._is_over.set()
        for consumer in self._consumers:
            if consumer.is_alive():
                consumer.join()
