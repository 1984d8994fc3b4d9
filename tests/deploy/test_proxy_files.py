"""Limits and waits in the shipped files of the three reverse proxies."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from relay.config import ServerSettings
from relay.server.listener import KEEP_ALIVE_S
from tests.deploy.proxies import SHIPPED

README = SHIPPED.parents[1] / "README.md"
CADDYFILE = SHIPPED / "caddy" / "Caddyfile"
SENDERS_PATIENCE_S = 10
ACK_S = ServerSettings().ack_timeout.seconds
MAX_BODY = ServerSettings().max_body


@dataclass(frozen=True)
class Limits:
    waits_s: list[float]
    """For the sender's head and body, and for a connection to the relay."""
    answer_s: float
    """For the relay's response."""
    idle_s: float
    """Of a connection to the relay."""
    bodies: set[int]


def directives(file: Path) -> dict[str, str]:
    """The directives of a file for nginx by their names, without blocks."""
    return _directives(file.read_text(encoding="utf-8"))


def _directives(text: str) -> dict[str, str]:
    return dict(re.findall(r"^ *([a-z_]+) +([^;{]+);", text, re.MULTILINE))


def nginx() -> Limits:
    passing = directives(SHIPPED / "nginx/relay/pass.conf")
    head = directives(SHIPPED / "nginx/nginx.conf")["client_header_timeout"]
    names = ("client_body_timeout", "proxy_connect_timeout", "proxy_send_timeout")
    assert passing["client_max_body_size"] == "1m"
    return Limits(
        waits_s=[_seconds(head), *(_seconds(passing[name]) for name in names)],
        answer_s=_seconds(passing["proxy_read_timeout"]),
        idle_s=_seconds(directives(SHIPPED / "nginx/relay/upstream.conf")["keepalive_timeout"]),
        bodies={1 << 20},
    )


def caddy() -> Limits:
    (server,) = caddys_own()["apps"]["http"]["servers"].values()
    (proxy,) = handlers(caddys_own(), "reverse_proxy")
    (limit,) = handlers(caddys_own(), "request_body")
    waits = (server["read_header_timeout"], server["read_timeout"])
    transport = proxy["transport"]
    # A request that waited for the relay may then wait for the disk.
    trying = proxy["load_balancing"]["try_duration"] + ACK_S * 1e9
    return Limits(
        waits_s=[each / 1e9 for each in (*waits, transport["dial_timeout"], trying)],
        answer_s=transport["response_header_timeout"] / 1e9,
        idle_s=transport["keep_alive"]["idle_timeout"] / 1e9,
        bodies={limit["max_size"]},
    )


def traefik() -> Limits:
    start, dynamic = (_yaml(f"traefik/{name}.yml") for name in ("traefik", "dynamic"))
    responding = start["entryPoints"]["websecure"]["transport"]["respondingTimeouts"]
    forwarding = dynamic["http"]["serversTransports"]["relay"]["forwardingTimeouts"]
    limit, again = (dynamic["http"]["middlewares"][name] for name in ("limit", "again"))
    return Limits(
        waits_s=[_seconds(responding["readTimeout"]), _seconds(forwarding["dialTimeout"])],
        answer_s=_seconds(forwarding["responseHeaderTimeout"]),
        idle_s=_seconds(forwarding["idleConnTimeout"]),
        bodies={
            limit["buffering"]["maxRequestBodyBytes"],
            limit["buffering"]["memRequestBodyBytes"],
            again["retry"]["maxRequestBodyBytes"],
        },
    )


def _seconds(value: str) -> float:
    number, unit = re.fullmatch(r"(\d+)(ms|s)", value).groups()  # type: ignore[union-attr]
    return int(number) / (1000 if unit == "ms" else 1)


def _yaml(name: str) -> Any:
    return yaml.safe_load((SHIPPED / name).read_text(encoding="utf-8"))


def run_caddy(*arguments: str) -> bytes:
    if shutil.which("caddy") is None:
        pytest.skip("caddy is not installed")
    done = subprocess.run(["caddy", *arguments], capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


@cache
def caddys_own() -> Any:
    """The Caddyfile as Caddy reads it."""
    return orjson.loads(run_caddy("adapt", "--config", str(CADDYFILE)))


def handlers(node: Any, name: str) -> Iterator[Any]:
    """Every handler of a kind, at any depth."""
    if isinstance(node, dict) and node.get("handler") == name:
        yield node
    for each in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from handlers(each, name)


@pytest.mark.parametrize("limits", [nginx, caddy, traefik])
def test_a_proxy_is_quicker_than_the_sender_and_slower_than_the_relay(limits: Any) -> None:
    found = limits()
    assert all(0 < wait_s < SENDERS_PATIENCE_S for wait_s in found.waits_s)
    assert ACK_S < found.answer_s < SENDERS_PATIENCE_S
    assert found.idle_s < KEEP_ALIVE_S
    assert found.bodies == {MAX_BODY}


def test_caddy_neither_redirects_http_nor_shows_its_admin_listener_to_others() -> None:
    (server,) = caddys_own()["apps"]["http"]["servers"].values()
    assert server["listen"] == [":443"]
    assert server["automatic_https"]["disable_redirects"]
    assert caddys_own()["admin"]["listen"] == "localhost:2019"


def test_the_caddyfile_is_formatted() -> None:
    assert run_caddy("fmt", str(CADDYFILE)).decode() == CADDYFILE.read_text(encoding="utf-8")


def test_traefik_has_one_entry_point_without_redirects_api_metrics_and_dashboard() -> None:
    start = _yaml("traefik/traefik.yml")
    assert set(start) == {"entryPoints", "providers", "accessLog", "log", "global"}
    assert list(start["entryPoints"]) == ["websecure"]
    assert list(start["entryPoints"]["websecure"]) == ["address", "transport"]


def test_the_readme_shows_lines_of_the_shipped_file() -> None:
    file = SHIPPED / "nginx/relay/pass.conf"
    (snippet,) = re.findall(r"```nginx\n(.*?)```", README.read_text(), re.DOTALL)
    shown, shipped = _directives(snippet), directives(file)
    assert shown.pop("proxy_pass") == "http://127.0.0.1:8080"
    assert len(shown) > 5
    assert shown.items() <= shipped.items()
    headers = r"proxy_set_header +([^;]+);"
    assert {*re.findall(headers, snippet)} <= {*re.findall(headers, file.read_text())}
