"""The `sqs` sink's destination: moto's server, one for all tests, behind a door.

moto takes whatever fits, and is never short of anything, so that for some failures the door leads
to a double that answers in SQS's JSON protocol: `CODES` and `ENTRIES` are those that moto lacks.
"""

import asyncio
import json
from itertools import count
from typing import Any, ClassVar

from msgspec.structs import replace

from relay.core.errors import Misconfigured, Refused, Temporary
from relay.core.event import Event
from relay.sinks.sqs.sink import BYTES_MAX
from tests.brokers.moto_sqs import REGION, MotoSqs
from tests.sinks.conformance import Message, Variety, watched_in
from tests.sinks.servers import BehindDoor
from tests.stub_server import Reply, Request, StubServer, until

CODES = {
    "ThrottlingException": (400, Temporary),
    "InternalFailure": (500, Temporary),
    "ServiceUnavailable": (503, Temporary),
    "InvalidMessageContents": (400, Refused),
    "AccessDeniedException": (400, Misconfigured),
    "InvalidClientTokenId": (403, Misconfigured),
}
"""Of the double. moto does know the last two, but gives them as XML, which hides the code."""
ENTRIES = {"our fault": (True, Refused), "their fault": (False, Temporary)}
"""Of the double: what is said of one message of a batch; moto fails all of a batch or nothing."""

_NUMBERS = count()


class SqsHarness(BehindDoor[MotoSqs]):
    program = MotoSqs
    sink_type = "sqs"
    secrets = ("marked-key", "marked-secret")
    failures: ClassVar = {
        "nobody listens": Temporary,
        "the queue does not exist": Misconfigured,
        "the access key is unknown": Misconfigured,
        **{code: kind for code, (_, kind) in CODES.items()},
        **{how: kind for how, (_, kind) in ENTRIES.items()},
    }
    reasons: ClassVar = {
        "the queue does not exist": "NonExistentQueue: the queue does not exist",
        "the access key is unknown": "SQS answers 403: look at the credentials",
    }
    bare: ClassVar = {"queue_url": "https://sqs.eu-west-1.amazonaws.com/1/q"}
    faults: ClassVar = (
        ({"queue_url": "q"}, "queue_url: "),
        ({"endpoint_url": "x"}, "endpoint_url: "),
        ({"aws_access_key_id": "marked"}, "aws_access_key_id: "),
        ({"group": "{{ nothing }}"}, "group: "),
    )
    deviations: ClassVar = {
        "a_loss_ends_what_waits": "its door lets pass what is only just connecting",
        "batches_share_one_connection": "a request of each ten messages has one, as with any HTTP",
        "cloudevents_have_an_extension_attribute_for_it": "ten attributes are all that SQS takes",
        "retry_after_is_kept_in_both_forms": "SQS does not ask for a pace",
    }

    def __init__(self) -> None:
        self.double = StubServer()
        self.name = f"relay-{next(_NUMBERS)}"
        self._taken: list[dict[str, Any]] = []

    async def prepare(self) -> None:
        self.queue_url = self.server.put_queue(self.name)
        await self.double.listen()

    async def __aexit__(self, *_: object) -> None:
        await self.door.shut()
        await self.double.stop()
        self.server.take_any_credentials()

    def table(self) -> dict[str, Any]:
        return {
            "queue_url": self.queue_url,
            "endpoint_url": f"http://127.0.0.1:{self.door.port}",
            "region": REGION,
            "aws_access_key_id": "marked-key",
            "aws_secret_access_key": "marked-secret",
        }

    def messages(self) -> list[Message]:
        self._taken += self.server.read(self.queue_url)
        return [_message(each) for each in self._taken]

    async def fail(self, how: str) -> None:
        if how == self.down:
            await self.door.shut()
        elif how == "the queue does not exist":
            self.messages()
            self.server.drop_queue(self.queue_url)
        elif how == "the access key is unknown":
            self.server.look_at_credentials()
        else:
            await self._answer_in_its_place(how)

    async def vary(self, event: Event) -> Variety:
        """Use a queue of small messages, because all are bound for one."""
        self.queue_url = self.server.put_queue(f"{self.name}-small", MaximumMessageSize="1024")
        bad = replace(event, body=event.body.ljust(2000))
        unfit = replace(event, body='{"a":"\ufffe"}'.encode())
        return Variety({"queue_url": self.queue_url}, event, bad, unfit, Refused)

    async def limit(self) -> int:
        return BYTES_MAX

    async def hang(self) -> None:
        self.door.hold()

    async def recover(self) -> None:
        self.server.take_any_credentials()
        self.server.put_queue(self.name)
        await self._lead_to(self.server.port)
        await self.door.listen()

    async def _answer_in_its_place(self, how: str) -> None:
        answer = _error if how in CODES else _refuse_entries
        self.double.reply = lambda request: answer(request, how)
        await self._lead_to(self.double.port)

    async def _lead_to(self, port: int) -> None:
        self.door.leads_to = port
        await self.door.cut()
        await until(lambda: self.door.open == 0, what="the end of the connections")
        await asyncio.sleep(0.02)  # for the sink to notice


def _error(request: Request, code: str) -> Reply:
    said = {"__type": f"com.amazonaws.sqs#{code}", "message": request.body.decode()}
    return reply(said, CODES[code][0])


def _refuse_entries(request: Request, how: str) -> Reply:
    failed = {"SenderFault": ENTRIES[how][0], "Code": "Any", "Message": request.body.decode()}
    ids = [each["Id"] for each in json.loads(request.body).get("Entries", [])]
    return reply({"Failed": [{"Id": each, **failed} for each in ids]})


def reply(said: dict[str, Any], status: int = 200) -> Reply:
    return Reply(status, json.dumps(said).encode(), {"content-type": "application/x-amz-json-1.0"})


def _message(entry: Any) -> Message:
    attributes = {name: each["StringValue"] for name, each in entry["MessageAttributes"].items()}
    return Message(attributes["relay-id"], entry["Body"].encode(), watched_in(attributes))
