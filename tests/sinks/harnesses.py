"""Every sink type's harness: one class, and one line in `HARNESSES`."""

import asyncio
import fcntl
import json
import os
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import Any, ClassVar, Self

import certifi
import pytest

from relay import sinks
from relay.core.clock import Clock
from relay.core.errors import Misconfigured, Refused, SinkError, Temporary
from relay.core.sink import BatchSettings, Sink
from tests.brokers.authority import Authority
from tests.sinks.amqp.harness import AmqpHarness
from tests.sinks.conformance import (
    CERTIFICATES_ASKED_FOR,
    Harness,
    Message,
    Secured,
    watched_in,
)
from tests.sinks.kafka.harness import KafkaHarness
from tests.sinks.mqtt.harness import MqttHarness
from tests.sinks.nats.harness import NatsHarness
from tests.sinks.pubsub.harness import PubsubHarness
from tests.sinks.redis.harness import RedisHarness
from tests.sinks.servers import OverHttp
from tests.sinks.sqs.harness import SqsHarness
from tests.stub_server import Reply, Request, StubServer

STATUSES: Mapping[str, type[SinkError]] = {
    **dict.fromkeys(("408", "425", "429", "500", "502", "503", "504", "599"), Temporary),
    **dict.fromkeys(("400", "413", "415", "422", "418"), Refused),
    **dict.fromkeys(("401", "403", "404", "410", "301", "302", "307", "308"), Misconfigured),
}


class ByStatus(OverHttp):
    """A sink that judges responses by their statuses."""

    failures: ClassVar = {**STATUSES, "nobody listens": Temporary, "no HTTP": Temporary}
    path: ClassVar[str]

    def success(self, _: Request) -> Reply:
        return Reply(body=b"ok")

    def table(self) -> dict[str, Any]:
        return {"url": self.destination.url(self.path)}

    async def fail(self, how: str) -> None:
        if how == self.down:
            await self.destination.stop()
        elif how == "no HTTP":
            self.destination.reply = lambda request: b"no HTTP " + self._echo(request)
        else:
            self._answer(int(how), {"location": self.destination.url("/other")})

    def throttle(self, retry_after: str) -> None:
        self._answer(429, {"retry-after": retry_after})

    def posts(self) -> list[Request]:
        return [request for request in self.destination.requests if request.method == "POST"]

    def _answer(self, status: int, headers: dict[str, str]) -> None:
        self.destination.reply = lambda request: Reply(status, self._echo(request), headers)

    def _echo(self, request: Request) -> bytes:
        return json.dumps([self.destination.url(request.target), *request.headers]).encode()


OAUTH2 = {"token_url": "https://idp.example/", "client_id": "a", "client_secret": "marked"}


class HttpHarness(ByStatus):
    sink_type = "http"
    path = "/hook/marked-path?token=marked-query"
    secrets = ("marked-path", "marked-query", "marked-header", "bWFya2VkIGtleSBvZiAyNCBieXRlcyEh")
    wrong: ClassVar = {
        "headers": {"x-own": 1},
        "signing_secrets": "whsec_x",
        "method": "GET",
    }
    bare: ClassVar = {"url": "https://crm.example/hook"}
    faults: ClassVar = (
        ({"url": "ftp://crm.example/"}, "url: expected http"),
        ({"url": "crm.example/marked"}, "url: expected http"),
        ({"url": "https://"}, "url: expected http"),
        ({"url": "http:///marked"}, "url: expected http"),
        ({"url": "http://crm.example:99999/marked"}, "url: expected http:// or"),
        ({"url": "http://[marked/"}, "url: expected http:// or https:// and a host"),
        ({"url": "http://1.2.3.4.5/marked"}, "url: the host is neither a name nor an IPv4"),
        ({"url": "http://crm.example/marked\n"}, "url: expected http:// or https:// and a host"),
        ({"headers": {"x own": "1"}}, r"headers.x own: .*name"),
        ({"headers": {"": "1"}}, r"headers.: .*name"),
        ({"headers": {"x-own": "marked\r\nx: y"}}, r"headers.x-own: .*ASCII"),
        ({"headers": {"x-own": "marked\n"}}, r"headers.x-own: .*ASCII"),
        ({"headers": {"x-own": " marked"}}, r"headers.x-own: .*blanks"),
        ({"headers": {"x-own": "mörked"}}, r"headers.x-own: .*ASCII"),
        ({"headers": {"X-Own": "marked", "x-own": "2"}}, r"headers.x-own: duplicate"),
        ({"headers": {"Webhook-Id": "marked"}}, r"headers.Webhook-Id: .*relay itself"),
        ({"headers": {"CE-type": "marked"}}, r"headers.CE-type: .*relay itself"),
        ({"headers": {"relay-event": "marked"}}, r"headers.relay-event: .*relay itself"),
        ({"headers": {"Content-Length": "1"}}, r"headers.Content-Length: .*relay itself"),
        ({"headers": {"HOST": "marked"}}, r"headers.HOST: .*relay itself"),
        ({"headers": {"transfer-encoding": "x"}}, r"headers.transfer-encoding: .*relay itself"),
        ({"signing_secrets": ["whsec_marked"]}, r"signing_secrets\[0\]: "),
        ({"url": "https://{{ source }}.example/"}, "url: expected templates in the path"),
        ({"url": "https://{{ source }}:x@crm.example/"}, "url: expected templates in the path"),
        ({"url": "{{ source }}://crm.example/"}, "url: expected "),
        ({"url": "https://crm.example/{{ id"}, "url: line 1: "),
        ({"url": "https://crm.example/{{ nothing }}"}, "url: line 1: no such name: nothing"),
        ({"url": "https://crm.example/{{ '' }}"}, "url: nothing, . or .. .*with a sample of"),
        ({"url": "https://crm.example/marked\n{{ id }}"}, "url: what is written is too long, or"),
        ({"headers": {"x-own": "{{ id"}}, r"headers.x-own: line 1: "),
        ({"headers": {"x-own": "mörked{{ id }}"}}, r"headers.x-own: expected printable ASCII"),
        ({"body": {"a": [{"b c": "{{"}]}}, r'body\.a\[0\]\."b c": line 1: '),
        ({"body": {"a": {"json": "{"}}}, r"body\.a: what is written is no JSON: .* at line 1, "),
        ({"body": "{{ id }}"}, r"body: a text stands outside quotes, .*with a sample of"),
        ({"body": '{"a": "marked" {{ 1 }}}'}, r"body: what is written is no JSON: .*a sample of"),
        ({"body": {"a": float("nan")}}, r"body\.a: expected texts, numbers, "),
        ({"body": {"a": 1 << 64}}, r"body\.a: expected texts, numbers, "),
        ({"form": {}}, "form: is empty"),
        ({"form": {"a": {"b": 1}}}, r"form\.a: expected a text, a number, "),
        ({"form": {"a": "{{ data.nothing }}"}}, r"form\.a: line 1: nothing is missing .*sample of"),
        ({"form": {"a": "b"}, "body": {}}, "form: does not go with body"),
        ({"form": {"a": "b"}, "format": "cloudevents"}, "format: cloudevents goes with the"),
        ({"body": {}, "format": "cloudevents"}, "format: cloudevents goes with the"),
        ({"url": "http://crm.example", "ca_file": certifi.where()}, "url: expected https://"),
        ({"ca_file": "no-such-file"}, "ca_file: cannot be read: No such file"),
        ({"ca_file": __file__}, "ca_file: holds no usable PEM"),
        ({"client_cert_file": "no-such-file"}, "client_cert_file.*: cannot be read: No such"),
        ({"client_cert_file": __file__}, "client_cert_file.*: holds no usable PEM"),
        ({"client_key_file": __file__}, "client_key_file: needs client_cert_file"),
        (
            {"url": "http://a:marked@crm.example/", "headers": {"Authorization": "marked"}},
            "headers.authorization: url carries",
        ),
        ({"success": "a ="}, "success: is not a JMESPath expression"),
        ({"delivered_on": [302], "park_on": [302]}, r"park_on\[0\]: 302 is in delivered_on"),
        ({"retry_on": [99]}, r"retry_on\[0\]: expected a status"),
        ({"refuse_on": [1000]}, r"refuse_on\[0\]: expected a status"),
        ({"retry_after_header": "a b"}, "retry_after_header: expected a header"),
        ({"oauth2": {**OAUTH2, "token_url": "marked"}}, "oauth2.token_url: expected"),
        (
            {"oauth2": OAUTH2, "headers": {"authorization": "marked"}},
            "oauth2: headers sets authorization already",
        ),
    )
    peer = "destination"
    deviations: ClassVar = {
        **dict.fromkeys(CERTIFICATES_ASKED_FOR, "asyncio's server hangs up without saying why"),
        "a_batch_has_all_its_answers_over_tls": "each event is a request of its own",
        "a_frozen_destination_gets_nothing_later_that_was_given_up": (
            "the tests' server has read what it does not answer"
        ),
    }

    async def secure(self, folder: Path) -> tuple[Authority, Mapping[str, Any]]:
        authority = Authority(folder)
        await self.destination.stop()
        self.destination = StubServer(tls=authority.context())
        await self.recover()
        return authority, {"url": self.destination.url(self.path)}

    def without_tls(self) -> Mapping[str, Any]:
        return {"url": self.destination.url(self.path).replace("http:", "https:")}

    def table(self) -> dict[str, Any]:
        return {
            **super().table(),
            "headers": {"authorization": "Bearer marked-header"},
            "signing_secrets": ["whsec_bWFya2VkIGtleSBvZiAyNCBieXRlcyEh"],
        }

    def messages(self) -> list[Message]:
        return [
            Message(post.header["webhook-id"], post.body, watched_in(post.header))
            for post in self.posts()
        ]


class SlackHarness(ByStatus):
    sink_type = "slack"
    raw = False
    path = "/services/T00000000/B00000000/markedhookurltoken"
    deviations: ClassVar = {
        "cloudevents_have_an_extension_attribute_for_it": "Slack takes messages, no CloudEvents"
    }
    secrets = ("T00000000", "B00000000", "markedhookurltoken")
    bare: ClassVar = {"url": "https://hooks.slack.com/services/T0/B0/token"}
    faults: ClassVar = tuple(
        ({"url": url}, "url: expected")
        for url in (
            "hooks.slack.com/services/T0/B0/marked",
            "ftp://hooks.slack.com/services/T0/B0/marked",
            "https:///services/T0/B0/marked",
            "https://hooks.slack.com:marked/",
            "https://hooks.slack.com\n/services/T0/B0/marked",
        )
    )

    def messages(self) -> list[Message]:
        # A check posts an empty object, which is no message to Slack.
        bodies = [post.body for post in self.posts() if post.body != b"{}"]
        found = [(re.search(rb"evt_\w+", body), body) for body in bodies]
        return [
            Message(match[0].decode() if match else "", body, _line(body)) for match, body in found
        ]


def _line(payload: bytes) -> str | None:
    """Find the line of a Slack message that says what the person has watched."""
    elements = [
        element["text"]
        for block in json.loads(payload).get("blocks", ())
        if block["type"] == "context"
        for element in block["elements"]
    ]
    return next((text for text in elements if "Watched so far" in text), None)


def _member(line: bytes) -> str | None:
    watched = json.loads(line).get("watched")
    return None if watched is None else json.dumps(watched)


class StdoutHarness(Harness):
    """Stdout is a pipe here, whose other end this reads."""

    sink_type = "stdout"
    failures: ClassVar = {"the reader is gone": Misconfigured, "no space": Temporary}
    bare: ClassVar = {}
    down = None
    deviations: ClassVar = {
        "cloudevents_have_an_extension_attribute_for_it": "a line of stdout is no CloudEvent",
        "a_refusal_is_of_this_event_alone": "stdout never says no to one line",
        "retry_after_is_kept_in_both_forms": "stdout does not ask for a pace",
        "building_opens_no_connection": "stdout is open before the relay starts",
        "no_connection_is_left_open": "stdout stays open for what comes after the sink",
        "a_destination_that_is_down_is_temporary_and_found_by_a_check": "nobody connects to stdout",
        "a_loss_ends_what_waits": "nobody connects to stdout",
    }

    def __init__(self) -> None:
        self._received = bytearray()
        self._read = -1
        self._stdout = -1

    async def __aenter__(self) -> Self:
        self._read, self._stdout = os.pipe()
        self._listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._leave()
        os.close(self._stdout)

    def build(self, clock: Clock, **changed: object) -> Sink:
        with open(self._stdout, "w", closefd=False) as stdout, redirect_stdout(stdout):
            return super().build(clock, **changed)

    def table(self) -> dict[str, Any]:
        return {}

    def messages(self) -> list[Message]:
        lines = [line for line in self._received.split(b"\n") if line]
        head = re.compile(rb'\{"source":.*?,"id":"(.*?)",.*?"body":(.*)\}')
        matches = [head.fullmatch(line) for line in lines]
        return [
            Message(match[1].decode(), match[2], _member(match[0])) for match in matches if match
        ]

    async def fail(self, how: str) -> None:
        if how == "the reader is gone":
            self._leave()
            return
        self._leave()
        self._replace_stdout_by(os.open("/dev/full", os.O_WRONLY))

    async def hang(self) -> None:
        asyncio.get_running_loop().remove_reader(self._read)
        fill(self._stdout)

    async def recover(self) -> None:
        if self._read < 0:
            self._read, write = os.pipe()
            self._replace_stdout_by(write)
        self._listen()

    def _listen(self) -> None:
        asyncio.get_running_loop().add_reader(self._read, self._take)

    def _take(self) -> None:
        self._received += os.read(self._read, 65536)

    def _leave(self) -> None:
        if self._read >= 0:
            asyncio.get_running_loop().remove_reader(self._read)
            os.close(self._read)
            self._read = -1

    def _replace_stdout_by(self, descriptor: int) -> None:
        os.dup2(descriptor, self._stdout)
        os.close(descriptor)


def fill(descriptor: int) -> None:
    """Fill a pipe with empty lines to the last byte, and leave it blocking as it was."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_NONBLOCK)
    with suppress(BlockingIOError):
        while True:
            os.write(descriptor, b"\n" * 4096)
    with suppress(BlockingIOError):
        while True:
            os.write(descriptor, b"\n")
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)


HARNESSES: tuple[type[Harness], ...] = (
    AmqpHarness,
    HttpHarness,
    KafkaHarness,
    MqttHarness,
    NatsHarness,
    PubsubHarness,
    RedisHarness,
    SlackHarness,
    SqsHarness,
    StdoutHarness,
)
BROKERS = (AmqpHarness, KafkaHarness, MqttHarness, NatsHarness, RedisHarness, SqsHarness)
"""Those that start a real server."""


def marks(kind: type[Harness]) -> list[pytest.MarkDecorator]:
    """Mark a case by what it needs."""
    return [pytest.mark.servers] if kind in BROKERS else []


def _parameters(fits: Callable[[type[Harness]], bool] = lambda _: True) -> list[Any]:
    return [
        pytest.param(kind, id=kind.sink_type, marks=marks(kind)) for kind in HARNESSES if fits(kind)
    ]


def _batches(kind: type[Harness]) -> bool:
    return issubclass(sinks.load(kind.sink_type).Settings, BatchSettings)


PARAMETERS = _parameters()
BATCHING = _parameters(_batches)
SECURED = _parameters(lambda kind: hasattr(kind, Secured.secure.__name__))


@asynccontextmanager
async def entered(request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    """Enter the harness that is a fixture's parameter, unless the fact cannot hold for its type."""
    kind: type[Harness] = request.param
    why = kind.deviations.get(request.function.__name__.removeprefix("test_"))
    if why is not None:
        pytest.skip(f"declared: {why}")
    async with kind() as harness:
        yield harness
