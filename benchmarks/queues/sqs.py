"""moto and aiobotocore."""

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

from aiobotocore.session import get_session

from benchmarks.queue import Broker, Loop, Message, batches, timed
from tests.brokers.moto_sqs import REGION, MotoSqs


class Sqs(Broker):
    """moto, which is far slower than the real one, and the more so the more it holds."""

    name = "sqs"
    most = 1_000

    def __init__(self) -> None:
        self._numbers = count()
        self._queue = ""

    def start(self, folder: Path) -> None:
        self._server = MotoSqs(folder)
        self._server.start()

    def stop(self) -> None:
        self._server.stop()

    def empty(self) -> None:
        self._queue = self._server.put_queue(f"relay{next(self._numbers)}")

    def table(self) -> dict[str, Any]:
        return {"queue_url": self._queue, "region": REGION, **self._account()}

    def _account(self) -> dict[str, Any]:
        return {
            "endpoint_url": self._server.url,
            "aws_access_key_id": "key",
            "aws_secret_access_key": "secret",
        }

    def loops(self) -> dict[str, Loop]:
        return {"send_message": self._one_by_one, "send_message_batch": self._in_batches}

    async def _one_by_one(self, messages: Sequence[Message], in_flight: int) -> float:
        async with get_session().create_client("sqs", REGION, **self._account()) as client:

            async def send(message: Message) -> None:
                await client.send_message(QueueUrl=self._queue, **_entry(message))

            return await timed(send, messages, workers=in_flight)

    async def _in_batches(self, messages: Sequence[Message], in_flight: int) -> float:
        async with get_session().create_client("sqs", REGION, **self._account()) as client:

            async def send(batch: Sequence[Message]) -> None:
                entries = [{"Id": str(n), **_entry(each)} for n, each in enumerate(batch)]
                answer = await client.send_message_batch(QueueUrl=self._queue, Entries=entries)
                assert len(answer["Successful"]) == len(batch)

            return await timed(send, batches(messages, 10), workers=in_flight // 10)

    def held(self) -> int:
        return self._server.count(self._queue)


def _entry(message: Message) -> dict[str, Any]:
    attributes = {
        name: {"DataType": "String", "StringValue": value}
        for name, value in message.shown["attributes"].items()
    }
    return {"MessageBody": message.body.decode(), "MessageAttributes": attributes}
