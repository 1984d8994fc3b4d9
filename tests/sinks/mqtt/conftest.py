"""Fixtures of the tests of the `mqtt` sink."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from relay.core.errors import SinkError
from relay.core.event import Event
from relay.sinks.mqtt.sink import MqttSink
from tests.brokers.mosquitto import PASSWORD, Mosquitto, user_properties
from tests.brokers.mqtt_double import MqttDouble
from tests.sinks.conformance import built

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
async def make(server: Mosquitto) -> AsyncIterator[Make]:
    """Builds sinks of the server, and closes them after the test."""
    made: list[MqttSink] = []

    def make(**table: Any) -> MqttSink:
        login = {"username": "relay", "password": PASSWORD, "client_id": "relay"}
        made.append(build(**{"url": server.url, **login, **table}))
        return made[-1]

    yield make
    for sink in made:
        await sink.close()


@pytest.fixture
async def broker() -> AsyncIterator[MqttDouble]:
    async with MqttDouble().listen() as broker:
        yield broker


@pytest.fixture
async def sink(broker: MqttDouble) -> AsyncIterator[MqttSink]:
    """Return a sink of the double, where each kind of event has a topic of its own."""
    sink = build(url=broker.url, topic="{{ event }}")
    yield sink
    await sink.close()


async def error_of(sink: MqttSink, event: Event) -> SinkError:
    with pytest.raises(SinkError) as caught:
        await sink.send(event)
    return caught.value


def ids(server: Mosquitto) -> list[str]:
    return [user_properties(message)["relay-id"] for message in server.read()]
