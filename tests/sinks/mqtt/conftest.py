"""Fixtures of the tests of the `mqtt` sink."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from relay.sinks.mqtt.sink import MqttSink
from tests.brokers.mosquitto import PASSWORD, Mosquitto, user_properties
from tests.brokers.mqtt_double import MqttDouble
from tests.sinks.conformance import built
from tests.sinks.conftest import Closing

Make = Callable[..., MqttSink]


def build(**table: Any) -> MqttSink:
    sink: MqttSink = built("mqtt", **table)
    return sink


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Mosquitto]:
    server = Mosquitto(tmp_path)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def make(server: Mosquitto, closing: Closing) -> Make:
    """Builds sinks of the server, and closes them after the test."""
    login = {"username": "relay", "password": PASSWORD, "client_id": "relay"}
    return lambda **table: closing(build(**{"url": server.url, **login, **table}))


@pytest.fixture
async def broker() -> AsyncIterator[MqttDouble]:
    async with MqttDouble().listen() as broker:
        yield broker


@pytest.fixture
def sink(broker: MqttDouble, closing: Closing) -> MqttSink:
    """Return a sink of the double, where each kind of event has a topic of its own."""
    return closing(build(url=broker.url, topic="{{ event }}"))


def ids(server: Mosquitto) -> list[str]:
    return [user_properties(message)["relay-id"] for message in server.read()]
