"""What confirms an event at each destination, and what only looks like it (docs/sinks.md)."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace
from nats.aio.msg import Msg

from relay.core.config_values import SecretTemplate
from relay.core.errors import Misconfigured, SinkError, Temporary
from relay.core.event import Event
from relay.sinks.http import sink as http
from relay.sinks.pubsub.errors import SILENT
from tests.brokers.kafka_mock import PRODUCE
from tests.brokers.mqtt_double import MqttDouble
from tests.brokers.mqtt_packets import puback
from tests.brokers.nats import NatsServer
from tests.conftest import ManualClock
from tests.sinks.batch import DELIVERED, series, told
from tests.sinks.conformance import error_of
from tests.sinks.kafka.harness import KafkaHarness
from tests.sinks.mqtt import conftest as mqtt
from tests.sinks.nats.conftest import Make, make, server
from tests.sinks.pubsub.harness import PubsubHarness
from tests.sinks.redis import conftest as redis
from tests.sinks.sqs.test_errors import Double, double, entries, sink, take
from tests.stub_server import Reply, Request, StubServer

__all__ = ["double", "make", "server", "sink"]  # fixtures

NOT_JETSTREAM = (
    "the answer is not JetStream's: stop the other subscriber that answers on the subject"
)
NO_PUBACKS = (
    b'{"ok":true}',
    b"{}",
    b"[]",
    b"null",
    b"+OK",
    b"",
    b"\xff",
    b'{"seq":1}',
    b'{"stream":"RELAY"}',
    b'{"stream":"","seq":1}',
    b'{"stream":7,"seq":1}',
    b'{"stream":"RELAY","seq":0}',
    b'{"stream":"RELAY","seq":-1}',
    b'{"stream":"RELAY","seq":1.5}',
    b'{"stream":"RELAY","seq":"1"}',
    b'{"stream":"RELAY","seq":true}',
    b'{"stream":"RELAY","seq":1,"error":"full"}',
)


@asynccontextmanager
async def answering(server: NatsServer, subject: str, said: bytes) -> AsyncIterator[None]:
    """Have a core subscriber answer whatever is published to a subject."""

    async def answer(message: Msg) -> None:
        await message.respond(said)

    async with await server.admin() as connection:
        await connection.subscribe(subject, cb=answer)
        await connection.flush()
        yield


@pytest.mark.parametrize("said", NO_PUBACKS, ids=repr)
async def test_nats_only_a_puback_confirms(
    server: NatsServer, make: Make, lead: Event, said: bytes
) -> None:
    sink = make(subject="elsewhere")
    async with answering(server, "elsewhere", said):
        error = await error_of(sink, lead)
    assert (type(error), error.reason) == (Misconfigured, NOT_JETSTREAM)
    assert server.read() == []


async def test_nats_an_error_beside_a_puback_is_an_error(
    server: NatsServer, make: Make, lead: Event
) -> None:
    said = b'{"stream":"RELAY","seq":1,"error":{"code":503,"err_code":10077}}'
    async with answering(server, "elsewhere", said):
        error = await error_of(make(subject="elsewhere"), lead)
    assert (type(error), error.status) == (Temporary, 503)


async def test_nats_the_puback_of_another_stream_than_the_sinks_confirms_nothing(
    server: NatsServer, make: Make, lead: Event
) -> None:
    async with answering(server, "elsewhere", b'{"stream":"OTHER","seq":1}'):
        error = await error_of(make(subject="elsewhere", stream="RELAY"), lead)
    reason = "another stream than `stream` names has answered"
    assert (type(error), error.reason) == (Misconfigured, reason)


async def test_nats_what_answers_one_event_does_not_answer_its_neighbours(
    server: NatsServer, make: Make, lead: Event
) -> None:
    sink = make(subject="{{ source }}")
    events = series(lead, 3, source="relay.x")
    events[1] = replace(events[1], source="elsewhere")
    async with answering(server, "elsewhere", b'{"error":[]}'):
        found = told(await sink.send_batch(events))
    assert found == [DELIVERED, (Misconfigured, NOT_JETSTREAM), DELIVERED]


@pytest.mark.parametrize("code", [0x01, 0x02, 0x11, 0x18, 0x7F])
async def test_mqtt_a_code_that_no_puback_has_confirms_nothing(lead: Event, code: int) -> None:
    async with MqttDouble().listen() as broker:
        broker.reply = lambda publish: puback(publish.packet_id, code)
        sink = mqtt.build(url=broker.url)
        (found,) = await sink.send_batch([lead])
        await sink.close()
    assert isinstance(found, Exception)


@pytest.mark.parametrize("said", [b"+OK", b"+QUEUED", b":1", b"$-1", b"$2\r\nOK", b"*0"], ids=repr)
async def test_redis_only_an_entrys_id_confirms(lead: Event, said: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while words := await command(reader):
            answers = {b"XADD": said, b"INFO": b"$19\r\nredis_version:7.0.0"}
            writer.write(answers.get(words[0], b"+OK") + b"\r\n")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        sink = redis.build(url=f"redis://127.0.0.1:{port}")
        outcomes = await sink.send_batch(series(lead, 2))
        await sink.close()
    reason = "the answer to XADD is no entry's id, so that it confirms nothing"
    assert told(outcomes) == [(Temporary, reason)] * 2


async def command(reader: asyncio.StreamReader) -> list[bytes]:
    """Read one command; empty at the end."""
    words = []
    for _ in range(int((await reader.readline())[1:] or b"0")):
        size = int((await reader.readline())[1:])
        words.append((await reader.readexactly(size + len(b"\r\n")))[:-2])
    return words


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        (-1, (Temporary, "Kafka failed with UNKNOWN")),
        (46, DELIVERED),  # DUPLICATE_SEQUENCE_NUMBER: it has the batch, and forgot where
    ],
)
async def test_kafka_an_error_confirms_nothing_unless_the_broker_knows_the_batch(
    lead: Event, code: int, outcome: Any
) -> None:
    async with KafkaHarness() as kafka:
        sink: Any = kafka.build(ManualClock())
        kafka.cluster.tell("push", PRODUCE, 1, code)
        found = told(await sink.send_batch([lead]))
        await sink.close()
        assert found == [outcome]
        assert kafka.cluster.tell("requests").count(PRODUCE) == 1


@pytest.mark.parametrize("taken", [{}, {"MessageId": ""}, {"MessageId": None}], ids=repr)
async def test_sqs_an_entry_without_a_message_id_is_not_confirmed(
    double: Double, sink: Any, lead: Event, taken: dict[str, Any]
) -> None:
    double.answer(lambda batch: {"Successful": [{"Id": batch[0]["Id"], **taken}]})
    assert told(await sink.send_batch([lead])) == [
        (Temporary, "SQS did not say what became of the message")
    ]


async def test_sqs_the_answer_to_another_request_confirms_nothing(
    double: Double, sink: Any, lead: Event
) -> None:
    assert told(await sink.send_batch(series(lead, 3))) == [DELIVERED] * 3
    earlier = take(entries(double.requests[0]))
    double.answer(lambda _: earlier)
    found = told(await sink.send_batch(series(lead, 3)))
    assert found == [(Temporary, "SQS did not say what became of the message")] * 3


async def test_sqs_an_entry_that_is_named_as_taken_and_as_failed_is_not_confirmed(
    double: Double, sink: Any, lead: Event
) -> None:
    def answer(batch: list[dict[str, Any]]) -> dict[str, Any]:
        failed = [{"Id": each["Id"], "SenderFault": False, "Code": "X"} for each in batch]
        return take(batch) | {"Failed": failed}

    double.answer(answer)
    (found,) = await sink.send_batch([lead])
    assert type(found) is Temporary


@pytest.mark.parametrize(
    "named",
    [[], ["1"], ["1", "2", "3"], ["1", "1"], [1, 2], ["", ""], "12", None],
    ids=repr,
)
async def test_pubsub_only_an_id_for_each_message_confirms(lead: Event, named: object) -> None:
    async with PubsubHarness() as harness:
        body = json.dumps({"messageIds": named}).encode()
        real = harness.destination.reply

        def reply(request: Request) -> Reply | bytes | None:
            return Reply(200, body) if request.target.endswith(":publish") else real(request)

        harness.destination.reply = reply
        sink: Any = harness.build(ManualClock())
        found = told(await sink.send_batch(series(lead, 2)))
        await sink.close()
    assert found == [(Temporary, SILENT)] * 2


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 304 Not Modified\r\n\r\n",
        b"HTTP/1.1 999 X\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhal",
        b"HTTP/1.1 200 OK\r\ncontent-le",
    ],
    ids=repr,
)
async def test_http_only_a_whole_answer_with_2xx_confirms(lead: Event, said: bytes) -> None:
    async with StubServer() as destination:
        destination.reply = lambda _: said
        settings = http.Settings(name="crm", type="http", url=SecretTemplate(destination.url()))
        sink = http.build(settings, ManualClock())
        (found,) = await asyncio.gather(sink.send(lead), return_exceptions=True)
        await sink.close()
    assert isinstance(found, SinkError)
