"""What the shipped files for Traefik say; that Traefik takes them, the other tests show."""

import re
from typing import Any

import yaml

from relay.config import ServerSettings
from relay.server.listener import KEEP_ALIVE_S
from tests.deploy.proxies import SHIPPED

SENDERS_PATIENCE_S = 10
MAX_BODY = ServerSettings().max_body


def read(name: str) -> Any:
    return yaml.safe_load((SHIPPED / "traefik" / name).read_text())


START, DYNAMIC = read("traefik.yml"), read("dynamic.yml")


def seconds(value: str) -> int:
    return int(value.removesuffix("s"))


def test_there_is_one_way_in_and_it_redirects_nothing() -> None:
    assert list(START["entryPoints"]) == ["websecure"]
    assert list(START["entryPoints"]["websecure"]) == ["address", "transport"]


def test_neither_an_api_nor_metrics_nor_a_dashboard_is_served() -> None:
    assert set(START) == {"entryPoints", "providers", "accessLog", "log", "global"}


def test_every_wait_is_shorter_than_the_senders_patience() -> None:
    responding = START["entryPoints"]["websecure"]["transport"]["respondingTimeouts"]
    forwarding = DYNAMIC["http"]["serversTransports"]["relay"]["forwardingTimeouts"]
    waits = [
        responding["readTimeout"],
        forwarding["dialTimeout"],
        forwarding["responseHeaderTimeout"],
    ]
    assert all(0 < seconds(wait) < SENDERS_PATIENCE_S for wait in waits)
    ack_s = ServerSettings().ack_timeout.seconds
    assert seconds(forwarding["responseHeaderTimeout"]) > ack_s


def test_traefik_closes_idle_connections_before_the_relay_does() -> None:
    forwarding = DYNAMIC["http"]["serversTransports"]["relay"]["forwardingTimeouts"]
    assert seconds(forwarding["idleConnTimeout"]) < KEEP_ALIVE_S


def test_the_limits_of_a_body_are_the_relays_default() -> None:
    middlewares = DYNAMIC["http"]["middlewares"]
    limit = middlewares["limit"]["buffering"]
    assert limit["maxRequestBodyBytes"] == limit["memRequestBodyBytes"] == MAX_BODY
    assert middlewares["again"]["retry"]["maxRequestBodyBytes"] == MAX_BODY


def test_only_the_hooks_paths_lead_anywhere() -> None:
    (router,) = DYNAMIC["http"]["routers"].values()
    assert set(re.findall(r"Path\(`(.*?)`\)", router["rule"])) == {"/webhooks", "/webhooks/"}
    assert "PathPrefix" not in router["rule"]
