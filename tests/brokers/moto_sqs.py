"""SQS as moto has it: a server program that keeps queues and users in memory."""

import importlib.util
import json
import sys
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import botocore.session
import pytest

from tests.brokers.program import Program

REGION = "eu-west-1"


class MotoSqs(Program):
    """It takes any credentials, unless it is told to look at them."""

    name = sys.executable

    def __init__(self, folder: Path) -> None:
        if importlib.util.find_spec("moto") is None:
            pytest.skip("moto is not installed")
        super().__init__(folder)
        self.url = f"http://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        return [self.name, str(Path(__file__).with_name("moto_program.py")), str(self.port)]

    def client(self, service: str = "sqs") -> Any:  # the library has no types
        return botocore.session.get_session().create_client(
            service,
            region_name=REGION,
            endpoint_url=self.url,
            aws_access_key_id="key",
            aws_secret_access_key="secret",
        )

    def put_queue(self, name: str, **attributes: str) -> str:
        """Make it, or leave it as it is; return its URL."""
        return str(self._sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"])

    def drop_queue(self, queue_url: str) -> None:
        self._sqs.delete_queue(QueueUrl=queue_url)

    def count(self, queue_url: str) -> int:
        """Say how many messages wait."""
        name = "ApproximateNumberOfMessages"
        found = self._sqs.get_queue_attributes(QueueUrl=queue_url, AttributeNames=[name])
        return int(found["Attributes"][name])

    def read(self, queue_url: str) -> list[dict[str, Any]]:
        """Take everything out of the queue."""
        found: list[dict[str, Any]] = []
        while batch := self.take(queue_url):
            found += batch
        return found

    def take(self, queue_url: str) -> list[dict[str, Any]]:
        """Take some out of the queue; none where it is empty."""
        taken: list[dict[str, Any]] = self._sqs.receive_message(
            QueueUrl=queue_url,
            MaxNumberOfMessages=10,
            AttributeNames=["All"],
            MessageAttributeNames=["All"],
        ).get("Messages", [])
        if taken:
            handles = [
                {"Id": str(number), "ReceiptHandle": each["ReceiptHandle"]}
                for number, each in enumerate(taken)
            ]
            self._sqs.delete_message_batch(QueueUrl=queue_url, Entries=handles)
        return taken

    def put_user(self, name: str, *actions: str) -> tuple[str, str]:
        """Make a user who may do this; return the access key and the secret."""
        iam = self.client("iam")
        iam.create_user(UserName=name)
        allowed = {"Effect": "Allow", "Action": actions, "Resource": "*"}
        policy = json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
        iam.put_user_policy(UserName=name, PolicyName="own", PolicyDocument=policy)
        key = iam.create_access_key(UserName=name)["AccessKey"]
        return key["AccessKeyId"], key["SecretAccessKey"]

    def look_at_credentials(self) -> None:
        """From now on nobody else gets in: neither does `put_queue`."""
        self._let_in("0")

    def take_any_credentials(self) -> None:
        self._let_in("inf")

    def _let_in(self, unseen: str) -> None:
        head = {"content-type": "text/plain"}
        url = f"{self.url}/moto-api/reset-auth"
        urlopen(Request(url, data=unseen.encode(), headers=head), timeout=10).close()  # noqa: S310

    @cached_property
    def _sqs(self) -> Any:
        return self.client()
