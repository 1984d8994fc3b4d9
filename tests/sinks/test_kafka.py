"""What the `kafka` sink does beyond the facts that hold for every sink."""

import asyncio
import os
import ssl
import struct
import subprocess
import traceback
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.protocol.admin import (
    ApiVersionResponse_v0,
    SaslAuthenticateResponse_v0,
    SaslHandShakeResponse_v1,
)

from relay import samples
from relay.errors import Misconfigured, Refused, Temporary
from relay.event import LEAD_CAPTURED, WEBHOOK_TEST, Event
from relay.sinks.kafka import KafkaSink, build
from tests.brokers.kafka import TOPIC
from tests.brokers.kafka_mock import INIT_PRODUCER_ID, PARTITIONS, PRODUCE
from tests.conftest import ManualClock
from tests.sinks.far_end import until
from tests.sinks.harness_kafka import KafkaHarness

PASSWORD = "marked-password"

JAVA = {
    "21": -973932308,
    "foobar": -790332482,
    "a-little-bit-long-string": -985981536,
    "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    "abc": 479470107,
}
"""Keys and what the Java client's murmur2 makes of them (Apache Kafka, UtilsTest)."""


@pytest.fixture
async def harness() -> AsyncIterator[KafkaHarness]:
    async with KafkaHarness() as harness:
        yield harness


class Sinks:
    """Makes sinks and closes them."""

    def __init__(self, harness: KafkaHarness, clock: ManualClock) -> None:
        self._harness = harness
        self._clock = clock
        self.made: list[KafkaSink] = []

    def __call__(self, **changed: object) -> KafkaSink:
        sink = build(self._harness.settings(**changed), self._clock)  # type: ignore[arg-type]
        self.made.append(sink)
        return sink


@pytest.fixture
async def make(harness: KafkaHarness, clock: ManualClock) -> AsyncIterator[Sinks]:
    sinks = Sinks(harness, clock)
    yield sinks
    for sink in sinks.made:
        await sink.close()


async def test_the_key_is_the_videos_id_and_the_headers_name_the_event(
    harness: KafkaHarness, make: Sinks, lead: Event
) -> None:
    await make(format="cloudevents").send(lead)
    (record,) = harness.cluster.read()
    assert record.key == lead.video_id()
    assert record.headers["relay-id"] == lead.id
    assert record.headers["ce_type"]
    assert record.headers["content-type"] == "application/json"


async def test_an_event_without_a_video_has_no_key(harness: KafkaHarness, make: Sinks) -> None:
    await make().send(samples.event(WEBHOOK_TEST, event_id="evt_test"))
    (record,) = harness.cluster.read()
    assert record.key is None


async def test_a_key_has_the_partition_that_java_gives_it(
    harness: KafkaHarness, make: Sinks, lead: Event
) -> None:
    for key in JAVA:
        await make(key=key).send(lead)
    expected = {key: (value & 0x7FFFFFFF) % PARTITIONS for key, value in JAVA.items()}
    assert {each.key: each.partition for each in harness.cluster.read()} == expected


async def test_a_topic_can_be_of_the_event(harness: KafkaHarness, make: Sinks, lead: Event) -> None:
    harness.cluster.tell("create", "t.lead.captured")
    sink = make(topic="t.{{ event }}")
    await sink.send(lead)
    await sink.check()
    assert [each.topic for each in harness.cluster.read()] == ["t.lead.captured"]
    assert sink.render(replace(lead, kind="a b"))["topic"] == "t.lead.captured"


@pytest.mark.parametrize(("code", "reason"), [(3, "does not exist"), (29, "may not write")])
async def test_a_topic_that_cannot_be_written_to_is_named(
    harness: KafkaHarness, make: Sinks, lead: Event, code: int, reason: str
) -> None:
    harness.cluster.tell("topic_error", TOPIC, code)
    sink = make()
    for trial in (sink.check(), sink.send(lead)):
        with pytest.raises(Misconfigured, match=f"{reason}|{TOPIC}.*{reason}") as caught:
            await trial
        assert TOPIC in caught.value.reason
    harness.cluster.tell("topic_error", TOPIC, 0)
    await sink.send(lead)


async def test_a_small_event_is_not_refused_for_another_in_its_batch(
    harness: KafkaHarness, make: Sinks
) -> None:
    sink = make(key="one")
    events = [samples.event(LEAD_CAPTURED, event_id=f"evt_{number}") for number in range(5)]
    await sink.check()
    harness.cluster.tell("push", PRODUCE, 1, 10)
    await asyncio.gather(*(sink.send(event) for event in events))
    assert {each.id for each in harness.messages()} == {event.id for event in events}


async def test_a_refusal_loses_none_of_the_others_in_flight(
    harness: KafkaHarness, make: Sinks, lead: Event
) -> None:
    sink = make(key="one")
    await sink.check()
    harness.cluster.tell("push", PRODUCE, 1, 10)
    large = replace(lead, id="evt_large", body=b'"' + b"x" * 20_000 + b'"')
    with pytest.raises(Refused, match="larger than the topic takes"):
        await sink.send(large)
    await asyncio.gather(*(sink.send(replace(lead, id=f"evt_{n}")) for n in range(5)))
    assert len(harness.messages()) == 5


async def test_a_producer_whose_batch_failed_is_replaced(
    harness: KafkaHarness, make: Sinks, lead: Event
) -> None:
    def producers() -> int:
        return int(harness.cluster.tell("requests").count(INIT_PRODUCER_ID))

    sink = make()
    await sink.send(lead)
    await sink.send(lead)
    assert producers() == 1
    await harness.fail("the user may not write to the topic")
    with pytest.raises(Misconfigured):
        await sink.send(lead)
    await harness.recover()
    await sink.send(lead)
    assert producers() == 2


async def test_what_was_cancelled_is_not_sent_later(
    harness: KafkaHarness, make: Sinks, lead: Event
) -> None:
    sink = make(key="one")
    await harness.fail("fewer replicas than the topic demands")
    sending = asyncio.create_task(sink.send(lead))
    await until(lambda: PRODUCE in harness.cluster.tell("requests"), what="the first attempt")
    sending.cancel()
    await asyncio.wait({sending})
    await harness.recover()
    await sink.send(replace(lead, id="evt_next"))
    assert [each.id for each in harness.messages()] == ["evt_next"]


async def test_one_broker_that_answers_is_enough(
    harness: KafkaHarness, make: Sinks, lead: Event
) -> None:
    await make(brokers=["127.0.0.1:1", *harness.cluster.brokers.split(",")]).send(lead)
    assert len(harness.messages()) == 1


async def test_a_failure_says_what_the_broker_said(
    harness: KafkaHarness, make: Sinks, lead: Event
) -> None:
    await harness.fail("fewer replicas than the topic demands")
    with pytest.raises(Temporary, match="in sync"):
        await make().send(lead)


async def test_a_wrong_password_is_misconfigured(make: Sinks, lead: Event) -> None:
    server = await asyncio.start_server(refuse_login, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    sink = make(
        brokers=f"127.0.0.1:{port}",
        security_protocol="SASL_PLAINTEXT",
        username="relay",
        password=PASSWORD,
    )
    for trial in (sink.check(), sink.send(lead)):
        with pytest.raises(Misconfigured, match="wrong username or password") as caught:
            await trial
        assert PASSWORD not in "".join(traceback.format_exception(caught.value))
    server.close()
    await server.wait_closed()


async def refuse_login(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Speak as much of Kafka's protocol as a login takes, and refuse it, repeating everything."""
    answers = {
        18: ApiVersionResponse_v0(error_code=0, api_versions=[(17, 1, 1), (18, 0, 0), (36, 0, 0)]),
        17: SaslHandShakeResponse_v1(error_code=0, enabled_mechanisms=["PLAIN"]),
    }
    try:
        while True:
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            request = await reader.readexactly(size)
            api, _, correlation = struct.unpack_from(">hhi", request)
            said = request.decode(errors="replace")
            answer = answers.get(api) or SaslAuthenticateResponse_v0(
                error_code=58, error_message=said, sasl_auth_bytes=b""
            )
            body = struct.pack(">i", correlation) + answer.encode()
            writer.write(struct.pack(">i", len(body)) + body)
    except asyncio.IncompleteReadError:
        writer.close()


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """Make a server's certificate, its key in the same file, that is its own authority."""
    path = tmp_path / "server.pem"
    names = ("-subj", "/CN=kafka", "-addext", "subjectAltName=IP:127.0.0.1")
    files = ("-nodes", "-keyout", str(path), "-out", str(tmp_path / "cert.pem"), "-days", "2")
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
    subprocess.run(("openssl", "req", "-x509", *curve, *files, *names), check=True)
    path.write_text(path.read_text() + (tmp_path / "cert.pem").read_text())
    return path


@pytest.mark.parametrize(
    ("trusted", "reason"), [(True, "wrong username or password"), (False, "does not verify")]
)
async def test_tls_is_verified_before_the_password_is_sent(
    make: Sinks, certificate: Path, *, trusted: bool, reason: str
) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    server = await asyncio.start_server(refuse_login, "127.0.0.1", 0, ssl=context)
    sink = make(
        brokers=f"127.0.0.1:{server.sockets[0].getsockname()[1]}",
        security_protocol="SASL_SSL",
        username="relay",
        password=PASSWORD,
        **({"ca_file": str(certificate)} if trusted else {}),
    )
    with pytest.raises(Misconfigured, match=reason):
        await sink.check()
    server.close()
    await server.wait_closed()


async def test_a_real_cluster_takes_an_event(clock: ManualClock, lead: Event) -> None:
    brokers = os.environ.get("RELAY_TEST_KAFKA")
    if brokers is None:
        pytest.skip("declared: RELAY_TEST_KAFKA names no brokers")
    sink = build(Bare().settings(brokers=brokers), clock)  # type: ignore[arg-type]
    try:
        await sink.check()
        place = (await sink.send(lead)).excerpt
    finally:
        await sink.close()
    _, partition, offset = (part.split()[-1] for part in place.split(", "))
    consumer = AIOKafkaConsumer(bootstrap_servers=brokers)
    async with consumer:
        where = TopicPartition(TOPIC, int(partition))
        consumer.assign([where])
        consumer.seek(where, int(offset))
        record = await consumer.getone()
    assert ("relay-id", lead.id.encode()) in record.headers
    assert record.value == lead.body


class Bare(KafkaHarness):
    """Settings without a cluster."""

    def table(self) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"brokers": "kafka://host"}, "brokers: expected"),
        ({"brokers": []}, "brokers: expected"),
        ({"brokers": "host:0"}, "brokers: expected"),
        ({"topic": "a b"}, "topic: expected"),
        ({"topic": "{{ nothing }}"}, "topic: line 1: no such name"),
        ({"key": "{{ data.nothing }}"}, "key: .*missing"),
        ({"username": "relay", "password": PASSWORD}, "security_protocol: expected a SASL_"),
        ({"security_protocol": "SASL_SSL", "username": "relay"}, "username, password: "),
        ({"ca_file": "x.pem"}, "security_protocol: expected SSL"),
        ({"security_protocol": "SSL", "ca_file": "missing.pem"}, "ca_file: cannot be read"),
        ({"security_protocol": "SSL", "client_key_file": "x"}, "client_key_file: needs"),
    ],
)
def test_a_bad_setting_is_named(changed: dict[str, Any], message: str, clock: ManualClock) -> None:
    table = {"brokers": "127.0.0.1:9092", **changed}
    with pytest.raises(ValueError, match=message):
        build(Bare().settings(**table), clock)  # type: ignore[arg-type]
