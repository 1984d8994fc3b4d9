"""The `sqs` sink's far end: it speaks SQS's JSON protocol, and fails in ways that moto cannot."""

import json
from typing import Any, ClassVar, Self

from relay.errors import Misconfigured, Refused, Temporary
from tests.sinks.conformance import Harness, Message
from tests.sinks.far_end import FarEnd, Reply, Request

CODES = {
    "ThrottlingException": (400, Temporary),
    "InternalFailure": (500, Temporary),
    "ServiceUnavailable": (503, Temporary),
    "InvalidMessageContents": (400, Refused),
    "AccessDeniedException": (400, Misconfigured),
    "InvalidClientTokenId": (403, Misconfigured),
    "QueueDoesNotExist": (400, Misconfigured),
}
ENTRIES = {"our fault": (True, Refused), "their fault": (False, Temporary)}


class SqsHarness(Harness):
    sink_type = "sqs"
    raw = True
    down = "nobody listens"
    secrets = ("marked-key", "marked-secret")
    failures: ClassVar = {
        down: Temporary,
        **{code: kind for code, (_, kind) in CODES.items()},
        **{how: kind for how, (_, kind) in ENTRIES.items()},
    }
    wrong: ClassVar = {
        "queue_url": 1,
        "region": 1,
        "endpoint_url": 1,
        "aws_access_key_id": 1,
        "aws_secret_access_key": 1,
        "group": 1,
        "format": "xml",
        "concurrency": "many",
    }
    deviations: ClassVar = {"retry_after_is_kept_in_both_forms": "SQS does not ask for a pace"}

    def __init__(self) -> None:
        self.far_end = FarEnd()
        self.taken: list[dict[str, Any]] = []

    async def __aenter__(self) -> Self:
        await self.recover()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.far_end.stop()

    def table(self) -> dict[str, Any]:
        return {
            "queue_url": self.far_end.url("/1/relay"),
            "endpoint_url": self.far_end.url(),
            "region": "eu-west-1",
            "aws_access_key_id": "marked-key",
            "aws_secret_access_key": "marked-secret",
        }

    def messages(self) -> list[Message]:
        return [
            Message(
                each["MessageAttributes"]["relay-id"]["StringValue"], each["MessageBody"].encode()
            )
            for each in self.taken
        ]

    async def fail(self, how: str) -> None:
        if how == self.down:
            await self.far_end.stop()
        elif how in CODES:
            self.far_end.reply = lambda request: self._error(request, how)
        else:
            self.far_end.reply = lambda request: self._refuse_entries(request, how)

    async def hang(self) -> None:
        self.far_end.reply = lambda _: None

    async def recover(self) -> None:
        await self.far_end.stop()
        await self.far_end.listen()
        self.far_end.reply = self._take

    def connections(self) -> int:
        return self.far_end.open

    def contacts(self) -> int:
        return self.far_end.accepted

    def _take(self, request: Request) -> Reply:
        entries = json.loads(request.body).get("Entries", [])
        self.taken += entries
        return _reply({"Successful": [{"Id": each["Id"], "MessageId": "m"} for each in entries]})

    def _error(self, request: Request, code: str) -> Reply:
        said = {"__type": f"com.amazonaws.sqs#{code}", "message": request.body.decode()}
        return _reply(said, CODES[code][0])

    def _refuse_entries(self, request: Request, how: str) -> Reply:
        failed = {"SenderFault": ENTRIES[how][0], "Code": "Any", "Message": request.body.decode()}
        ids = [each["Id"] for each in json.loads(request.body).get("Entries", [])]
        return _reply({"Failed": [{"Id": each, **failed} for each in ids]})


def _reply(said: dict[str, Any], status: int = 200) -> Reply:
    return Reply(status, json.dumps(said).encode(), {"content-type": "application/x-amz-json-1.0"})
