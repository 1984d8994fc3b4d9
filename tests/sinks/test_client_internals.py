"""The inner parts of clients that the relay uses: a version that lacks one fails here, by name.

Each client with inner parts in use has an upper bound in pyproject.toml, to be raised by hand.
"""

import ast
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError
from nats.aio.client import Client
from nats.errors import Error as NatsError

from relay.sinks.kafka.errors import DETAILS, MEANINGS, OF_TOPIC
from relay.sinks.nats import connection as nats_connection
from relay.sinks.nats.stream import BoundedStream
from tests.project.test_project import CAPPED

NATS = {"_transport"}
"""What of the client is set before it connects."""


def test_nats_has_the_inner_part_that_is_used() -> None:
    assert vars(Client())["_transport"] is None
    assert inner_names(parse(nats_connection)) - own_names(parse(nats_connection)) == NATS


async def test_nats_keeps_the_stream_that_it_is_given() -> None:
    client, stream = Client(), BoundedStream(needs_tls=False)
    client._transport = stream
    with pytest.raises(NatsError):
        await client.connect("nats://127.0.0.1:1", allow_reconnect=False, max_reconnect_attempts=1)
    assert client._transport is stream


def test_every_client_whose_inner_parts_are_listed_has_an_upper_bound() -> None:
    assert {"nats-py"} <= CAPPED


def test_every_failure_of_kafka_that_has_a_meaning_is_one_of_the_client() -> None:
    assert [name for name in MEANINGS if not hasattr(KafkaError, name)] == []
    assert MEANINGS.keys() >= DETAILS.keys() | OF_TOPIC


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
