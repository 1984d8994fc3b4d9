"""What may answer at the address of a Redis server, and is none: a Sentinel, a cluster's node."""

import time
from contextlib import closing
from pathlib import Path

from tests.brokers.program import Program
from tests.brokers.redis import RedisServer
from tests.ports import free_port


class RedisSentinel(Program):
    """Watches a server that need not run."""

    name = "redis-server"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.url = f"redis://127.0.0.1:{self.port}"
        (folder / "sentinel.conf").write_text(
            f"bind 127.0.0.1\nport {self.port}\ndir {folder}\n"
            f"sentinel monitor main 127.0.0.1 {free_port()} 1\n"
        )

    def command(self) -> list[str]:
        return [self.name, str(self.folder / "sentinel.conf"), "--sentinel"]


class RedisCluster:
    """Two nodes, of which the first has all slots."""

    def __init__(self, folder: Path) -> None:
        self.nodes: list[RedisServer] = []
        self._bus_ports = [free_port(), free_port()]
        for number, bus_port in enumerate(self._bus_ports):
            own = folder / f"node{number}"
            own.mkdir()
            more = f"cluster-enabled yes\ncluster-port {bus_port}"
            self.nodes.append(RedisServer(own, more=more))

    def start(self) -> None:
        """Return once the second node knows who has the slots."""
        for node in self.nodes:
            node.start()
        first, second = self.nodes
        with closing(first.admin()) as admin:
            admin.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        with closing(second.admin()) as admin:
            admin.execute_command("CLUSTER", "MEET", "127.0.0.1", first.port, self._bus_ports[0])
            end_s = time.monotonic() + 60
            while "cluster_state:ok" not in str(admin.execute_command("CLUSTER", "INFO")):
                assert time.monotonic() < end_s, "the nodes make no cluster"
                time.sleep(0.05)

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()
