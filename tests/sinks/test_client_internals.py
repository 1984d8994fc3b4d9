"""The inner parts of clients that the relay uses: a version that lacks one fails here, by name.

Each client with inner parts in use has an upper bound in pyproject.toml, to be raised by hand.
"""

import ast
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, errors
from aiokafka.conn import AIOKafkaConnection
from aiokafka.producer.message_accumulator import MessageBatch
from nats.aio.client import Client
from nats.errors import Error as NatsError

from relay.sinks.kafka import producer as kafka_producer
from relay.sinks.kafka.errors import MEANINGS, UNNAMED
from relay.sinks.nats import connection as nats_connection
from relay.sinks.nats.stream import Stream
from tests.project.test_project import CAPPED

KAFKA = {
    "_message_accumulator": "producer",
    "_sender": "producer",
    "_conns": "client",
    "_md_update_fut": "client",
    "_batches": "accumulator",
    "_closed": "accumulator",
    "_writer": "connection",
    "_relative_offset": "batch",
}
"""Whose part each name is, with all that `kafka_producer` uses."""

NATS = {"_transport"}
"""What of the client is set before it connects."""


@pytest.fixture
async def parts() -> AsyncIterator[dict[str, Any]]:
    producer = AIOKafkaProducer(bootstrap_servers="127.0.0.1:1")
    yield {
        "producer": producer,
        "client": producer.client,
        "accumulator": producer._message_accumulator,
        "connection": AIOKafkaConnection("127.0.0.1", 1),
        "batch": producer.create_batch(),
    }
    await producer.stop()


async def test_aiokafka_has_every_inner_part_that_is_used(parts: dict[str, Any]) -> None:
    missing = [f"{of}.{name}" for name, of in KAFKA.items() if not hasattr(parts[of], name)]
    assert missing == []
    assert hasattr(MessageBatch, "drain_ready")
    assert callable(parts["producer"]._sender.close)
    assert parts["batch"]._relative_offset == parts["batch"].record_count() == 0


def test_every_inner_part_of_aiokafka_that_is_used_is_listed() -> None:
    tree = parse(kafka_producer)
    assert inner_names(tree) - own_names(tree) == set(KAFKA)


def test_nats_has_the_inner_part_that_is_used() -> None:
    assert vars(Client())["_transport"] is None
    assert inner_names(parse(nats_connection)) - own_names(parse(nats_connection)) == NATS


async def test_nats_keeps_the_stream_that_it_is_given() -> None:
    client, stream = Client(), Stream(needs_tls=False)
    client._transport = stream
    with pytest.raises(NatsError):
        await client.connect("nats://127.0.0.1:1", allow_reconnect=False, max_reconnect_attempts=1)
    assert client._transport is stream


def test_every_client_whose_inner_parts_are_listed_has_an_upper_bound() -> None:
    assert {"aiokafka", "nats-py"} <= CAPPED


async def test_no_name_of_ours_is_one_of_the_clients(parts: dict[str, Any]) -> None:
    """Where we derive from a client's class, each would take the other's values."""
    of_kafka = set(dir(parts["producer"])) | set(vars(parts["producer"]))
    assert own_names(parse(kafka_producer)) & of_kafka == set()


def test_every_failure_that_has_a_meaning_is_one_of_the_client() -> None:
    known = {name for name in MEANINGS if hasattr(errors, name)}
    assert set(MEANINGS) - known == set(UNNAMED.values())


def parse(module: Any) -> ast.Module:
    return ast.parse(Path(module.__file__).read_text())


def inner_names(tree: ast.Module) -> set[str]:
    """Collect what begins with one underscore and is asked of anything."""
    found = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return {name for name in found if is_inner(name)}


def own_names(tree: ast.Module) -> set[str]:
    """Collect what begins with one underscore and is defined here, or set on `self`."""
    defined = {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    is_set = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }
    return {name for name in defined | is_set if is_inner(name)}


def is_inner(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")
