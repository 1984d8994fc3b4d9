"""Redis servers in company: watched by Sentinels, or as nodes of a cluster."""

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import redis

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


class WatchedServers:
    """A master with two replicas, and three Sentinels that watch them."""

    MASTER = "Main_1"
    SENTINEL_PASSWORD = "marked-sentinel"

    def __init__(self, folder: Path) -> None:
        self.servers: list[RedisServer] = []
        for number in range(3):
            own = folder / f"server{number}"
            own.mkdir()
            more = "masterauth admin\nrepl-diskless-sync-delay 0"
            if number:
                more += f"\nreplicaof 127.0.0.1 {self.servers[0].port}"
            self.servers.append(RedisServer(own, more=more))
        self.sentinels: list[WatchingSentinel] = []
        for number in range(3):
            own = folder / f"sentinel{number}"
            own.mkdir()
            self.sentinels.append(WatchingSentinel(own, self.servers[0].port))
        self.hosts = [f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels]
        self.url = self.servers[0].url.replace(f"127.0.0.1:{self.servers[0].port}", self.MASTER)

    def start(self) -> None:
        """Return once each Sentinel knows the other two and two healthy replicas."""
        for program in (*self.servers, *self.sentinels):
            program.start()
        _wait(lambda: all(each.knows_all() for each in self.sentinels), "the Sentinels' agreement")

    def master(self) -> RedisServer:
        """Return the server that the first Sentinel names."""
        with closing(self.sentinels[0].admin()) as admin:
            _, port = admin.sentinel_get_master_addr_by_name(self.MASTER)
        return next(server for server in self.servers if server.port == port)

    def fail_over(self) -> None:
        """Order what an operator orders for a maintenance of the master."""
        with closing(self.sentinels[0].admin()) as admin:
            admin.execute_command("SENTINEL", "FAILOVER", self.MASTER)

    def stop(self) -> None:
        for program in (*self.sentinels, *self.servers):
            program.stop()


class WatchingSentinel(Program):
    """Asks for a password, and calls a server down after a second."""

    name = "redis-server"

    def __init__(self, folder: Path, master_port: int) -> None:
        super().__init__(folder)
        name, password = WatchedServers.MASTER, WatchedServers.SENTINEL_PASSWORD
        (folder / "sentinel.conf").write_text(
            f"bind 127.0.0.1\nport {self.port}\ndir {folder}\n"
            f"requirepass {password}\nsentinel sentinel-pass {password}\n"
            f"sentinel monitor {name} 127.0.0.1 {master_port} 2\n"
            f"sentinel auth-pass {name} admin\n"
            f"sentinel down-after-milliseconds {name} 1000\n"
            f"sentinel failover-timeout {name} 6000\n"
        )

    def command(self) -> list[str]:
        return [self.name, str(self.folder / "sentinel.conf"), "--sentinel"]

    def admin(self) -> Any:  # half of the library has no types
        return redis.Redis(port=self.port, password=WatchedServers.SENTINEL_PASSWORD)

    def knows_all(self) -> bool:
        with closing(self.admin()) as admin:
            master = admin.sentinel_master(WatchedServers.MASTER)
            replicas = admin.sentinel_slaves(WatchedServers.MASTER)
        healthy = [each for each in replicas if each["master-link-status"] == "ok"]
        return master["num-other-sentinels"] == 2 and len(healthy) == 2


def _wait(fact: Callable[[], bool], what: str) -> None:
    end_s = time.monotonic() + 60
    while not fact():
        assert time.monotonic() < end_s, f"never came: {what}"
        time.sleep(0.05)


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
            _wait(
                lambda: "cluster_state:ok" in str(admin.execute_command("CLUSTER", "INFO")),
                "the cluster of the nodes",
            )

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()
