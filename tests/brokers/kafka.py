"""A Kafka cluster of three mock brokers in a process of its own, and a consumer that reads it all.

It holds everything in memory: `kill` takes the brokers off the network and `restart` puts them
back with what they had, as replicated disks would; the loss of a broker's disk cannot be shown.
"""

import base64
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

TOPIC = "relay"
_ESTABLISHED = "01"


@dataclass(frozen=True)
class Record:
    topic: str
    partition: int
    key: str | None
    headers: dict[str, str]
    value: bytes


class KafkaCluster:
    """`brokers` is what a sink's setting of that name takes."""

    brokers: str

    def __init__(self) -> None:
        if importlib.util.find_spec("confluent_kafka") is None:
            pytest.skip("confluent-kafka is not installed")
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        script = Path(__file__).with_name("kafka_mock.py")
        self._process = subprocess.Popen(
            [sys.executable, str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.brokers = self._answer()
        self.tell("create", TOPIC)

    def tell(self, *command: Any) -> Any:
        """Give the process one of `kafka_mock.Cluster`'s methods to call."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def kill(self) -> None:
        self.tell("down")

    def restart(self) -> None:
        self.tell("up")

    def freeze(self) -> None:
        """Return once it really stands still."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.kill()
        self._process.communicate()
        self._process = None

    def read(self) -> list[Record]:
        """Consume every topic that was created from its first record to its last."""
        found = self.tell("read")
        return [Record(**each | {"value": base64.b64decode(each["value"])}) for each in found]

    def connections(self) -> int:
        """Count the connections that this process holds to the brokers."""
        ports = {int(port) for port in re.findall(r":(\d+)", self.brokers)}
        return sum(port in ports for port in _own_far_ports())

    def _answer(self) -> Any:
        assert self._process is not None
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


def _own_far_ports() -> list[int]:
    own = set()
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the folder's own
            own.add(str(link.readlink()))
    lines = Path("/proc/self/net/tcp").read_text().splitlines()[1:]
    columns = [line.split() for line in lines]
    return [
        int(each[2].partition(":")[2], 16)
        for each in columns
        if each[3] == _ESTABLISHED and f"socket:[{each[9]}]" in own
    ]
