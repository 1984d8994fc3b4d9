"""Ports for programs that tests start."""

import socket
from random import SystemRandom

_PORTS = range(15_000, 32_000)
"""Below those that the kernel gives to outgoing connections: one could take a killed relay's."""


def free_port() -> int:
    """A port that nobody listens on, and that no outgoing connection is given."""
    random = SystemRandom()
    while True:
        port = random.choice(_PORTS)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
