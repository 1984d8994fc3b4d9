"""Ports for programs that tests start."""

import os
import socket
from itertools import cycle
from random import SystemRandom

_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))

_PORTS = range(15_000, 32_000)[_WORKER::_WORKERS]
"""Below those that the kernel gives to outgoing connections: one could take a killed relay's."""

_NEXT = cycle(SystemRandom().sample(_PORTS, len(_PORTS)))


def free_port() -> int:
    """A port that nobody listens on, and that no other call and no outgoing connection is given."""
    for port in _NEXT:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise AssertionError("a cycle has no end")
