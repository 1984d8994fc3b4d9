"""SQS as moto has it: a server program that keeps queues in memory."""

import sys
from pathlib import Path
from typing import Any

import botocore.session

from tests.brokers.program import Program


class MotoSqs(Program):
    # Beside the interpreter, for a virtual environment need not be on the path.
    name = str(Path(sys.executable).with_name("moto_server"))

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.url = f"http://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        return [self.name, "-H", "127.0.0.1", "-p", str(self.port)]

    def client(self) -> Any:  # the library has no types
        return botocore.session.get_session().create_client(
            "sqs",
            region_name="eu-west-1",
            endpoint_url=self.url,
            aws_access_key_id="key",
            aws_secret_access_key="secret",
        )

    def put_queue(self, name: str, **attributes: str) -> str:
        return str(self.client().create_queue(QueueName=name, Attributes=attributes)["QueueUrl"])

    def read(self, queue_url: str) -> list[dict[str, Any]]:
        """Take everything out of the queue."""
        client, found = self.client(), []
        while batch := client.receive_message(
            QueueUrl=queue_url,
            MaxNumberOfMessages=10,
            AttributeNames=["All"],
            MessageAttributeNames=["All"],
        ).get("Messages"):
            found += batch
            for each in batch:
                client.delete_message(QueueUrl=queue_url, ReceiptHandle=each["ReceiptHandle"])
        client.close()
        return found
