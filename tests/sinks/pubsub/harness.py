"""The `pubsub` sink's destination: the double, and the ways in which Google's servers fail."""

import base64
import json
from functools import cache
from typing import Any, ClassVar

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from relay.core.errors import Misconfigured, Refused, SinkError, Temporary
from relay.core.event import Event
from relay.sinks.pubsub.sink import MESSAGE_MAX
from tests.brokers.pubsub_double import PROJECT, TOPIC, PubsubDouble, said, status
from tests.sinks.conformance import Message, Variety, by_source, watched_in
from tests.sinks.servers import OverHttp
from tests.stub_server import Reply, Request

STATUSES: dict[str, type[SinkError]] = {
    **dict.fromkeys(("ABORTED", "CANCELLED", "DEADLINE_EXCEEDED", "INTERNAL"), Temporary),
    **dict.fromkeys(("RESOURCE_EXHAUSTED", "UNAVAILABLE", "UNKNOWN"), Temporary),
    **dict.fromkeys(("INVALID_ARGUMENT", "OUT_OF_RANGE"), Refused),
    **dict.fromkeys(("UNAUTHENTICATED", "PERMISSION_DENIED", "NOT_FOUND"), Misconfigured),
    **dict.fromkeys(("FAILED_PRECONDITION", "UNIMPLEMENTED"), Misconfigured),
}
PAGES = {
    "a page with 200": (200, Temporary),
    "a page with 404": (404, Misconfigured),
    "a page with 502": (502, Temporary),
}
ANSWERS: dict[str, Any] = {
    "no ids": {},
    "ids of nothing": {"messageIds": [""]},
    "too many ids": {"messageIds": ["1", "2"]},
    "ids that are no list": {"messageIds": "1"},
    "no object": ["1"],
}


@cache
def key_pair() -> tuple[str, str]:
    """Make a private key and its public one, both as PEM."""
    # Short, because the library checks the key anew for each sink.
    key = rsa.generate_private_key(public_exponent=65537, key_size=1024)  # noqa: S505
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return private.decode(), public.decode()


def service_account(**changed: Any) -> str:
    """Write a service account's key as Google's console hands it out."""
    return json.dumps(
        {
            "type": "service_account",
            "project_id": PROJECT,
            "private_key_id": "marked-key-id",
            "private_key": key_pair()[0],
            "client_email": f"marked@{PROJECT}.iam.gserviceaccount.com",
            "token_uri": "http://127.0.0.1:9/none",
            **changed,
        }
    )


class PubsubHarness(OverHttp):
    sink_type = "pubsub"
    secrets = ("marked-key-id", "marked@", "BEGIN PRIVATE KEY", "eyJ")  # as every JWT begins
    failures: ClassVar = {
        "nobody listens": Temporary,
        **STATUSES,
        **{how: kind for how, (_, kind) in PAGES.items()},
        **dict.fromkeys(ANSWERS, Temporary),
    }
    reasons: ClassVar = {"nobody listens": "connection refused"}
    wrong: ClassVar = {"emulator_host": "no port"}
    bare: ClassVar = {"project": PROJECT, "emulator_host": "127.0.0.1:1"}
    faults: ClassVar = (
        ({"project": "no project/x"}, "project: "),
        ({"topic": "projects/p/topics/t"}, "topic: "),
        ({"topic": "google"}, "topic: "),
        ({"topic": "{{ nothing }}"}, "topic: "),
        ({"ordering_key": "{{ nothing }}"}, "ordering_key: "),
        *(
            ({"emulator_host": None, "endpoint_url": url}, "endpoint_url: ")
            for url in ("http://pubsub.googleapis.com", "https://a:marked@b.example", "pubsub")
        ),
        *(
            ({"credentials": text}, "credentials: ")
            for text in (
                "marked",
                "[]",
                '{"type": "external_account"}',
                '{"type": "authorized_user"}',
                service_account(private_key="marked"),
                service_account(private_key=1),
            )
        ),
    )
    deviations: ClassVar = {
        "batches_share_one_connection": "a request has one of its own while it is under way",
    }

    def __init__(self) -> None:
        super().__init__()
        self.double = PubsubDouble(certificate=key_pair()[1])

    def table(self) -> dict[str, Any]:
        return {
            "project": PROJECT,
            "credentials": service_account(),
            "endpoint_url": self.destination.url("/"),
        }

    def messages(self) -> list[Message]:
        return [
            Message(
                each["attributes"]["relay-id"],
                base64.b64decode(each["data"]),
                watched_in(each["attributes"]),
            )
            for each in self.double.messages
        ]

    async def fail(self, how: str) -> None:
        if how == self.down:
            await self.destination.stop()
        elif how in PAGES:
            self.destination.reply = lambda request: _page(PAGES[how][0], request)
        elif how in ANSWERS:
            self.destination.reply = lambda _: said(ANSWERS[how])
        else:
            self._answer(how, {})

    def success(self, request: Request) -> Reply:
        return self.double.answer(request)

    async def vary(self, event: Event) -> Variety:
        return by_source(event, "topic", good=TOPIC, bad="nowhere", unfit="x")

    async def limit(self) -> int:
        return MESSAGE_MAX

    def throttle(self, retry_after: str) -> None:
        self._answer("RESOURCE_EXHAUSTED", {"retry-after": retry_after})

    def _answer(self, code: str, headers: dict[str, str]) -> None:
        def reply(request: Request) -> Reply:
            reply = status(code, _echo(request), details=[{"reason": _echo(request)}])
            return Reply(reply.status, reply.body, headers)

        self.destination.reply = reply


def _page(number: int, request: Request) -> Reply:
    return Reply(number, f"<html>{_echo(request)}</html>".encode())


def _echo(request: Request) -> str:
    """Repeat the request, and what it says once decoded."""
    messages = json.loads(request.body)["messages"] if request.body else []
    bodies = [base64.b64decode(each["data"]).decode() for each in messages]
    return json.dumps([request.target, *request.headers, *bodies])
