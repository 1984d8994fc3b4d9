"""What the shipped Caddyfile says, as Caddy reads it."""

import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from relay.config import ServerSettings
from relay.server.listener import KEEP_ALIVE_S
from tests.deploy.proxies import SHIPPED

FILE = SHIPPED / "caddy" / "Caddyfile"
SENDERS_PATIENCE_S = 10


def caddy(*arguments: str) -> bytes:
    if shutil.which("caddy") is None:
        pytest.skip("caddy is not installed")
    done = subprocess.run(["caddy", *arguments], capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


@pytest.fixture(scope="module")
def config() -> Any:
    return orjson.loads(caddy("adapt", "--config", str(FILE)))


def handlers(node: Any, name: str) -> Iterator[Any]:
    """Every handler of a kind, however deep."""
    if isinstance(node, dict):
        if node.get("handler") == name:
            yield node
        for each in node.values():
            yield from handlers(each, name)
    elif isinstance(node, list):
        for each in node:
            yield from handlers(each, name)


def seconds(nanoseconds: int) -> float:
    return nanoseconds / 1e9


def test_http_is_not_redirected_to_https(config: Any) -> None:
    (server,) = config["apps"]["http"]["servers"].values()
    assert server["listen"] == [":443"]
    assert server["automatic_https"]["disable_redirects"]


def test_every_wait_is_shorter_than_the_senders_patience(config: Any) -> None:
    (server,) = config["apps"]["http"]["servers"].values()
    (proxy,) = handlers(config, "reverse_proxy")
    waits = [
        server["read_header_timeout"],
        server["read_timeout"],
        proxy["transport"]["dial_timeout"],
        proxy["transport"]["response_header_timeout"],
    ]
    assert all(0 < seconds(wait) < SENDERS_PATIENCE_S for wait in waits)
    # What waited for the relay may still wait for the disk.
    ack_s = ServerSettings().ack_timeout.seconds
    assert seconds(proxy["load_balancing"]["try_duration"]) + ack_s < SENDERS_PATIENCE_S
    assert seconds(proxy["transport"]["response_header_timeout"]) > ack_s


def test_caddy_closes_idle_connections_before_the_relay_does(config: Any) -> None:
    (proxy,) = handlers(config, "reverse_proxy")
    assert seconds(proxy["transport"]["keep_alive"]["idle_timeout"]) < KEEP_ALIVE_S


def test_the_limit_of_a_body_is_the_relays_default(config: Any) -> None:
    (limit,) = handlers(config, "request_body")
    assert limit["max_size"] == ServerSettings().max_body


def test_nobody_else_reaches_caddys_own_admin_listener(config: Any) -> None:
    assert config["admin"]["listen"] == "localhost:2019"


def test_the_file_is_formatted() -> None:
    assert caddy("fmt", str(FILE)).decode() == FILE.read_text()
