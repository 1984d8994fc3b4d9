"""Pub/Sub's REST interface as its reference describes it, Google's token and metadata servers.

No emulator can be installed by name, and the real thing is not at hand; this is no proof of either.
Run as a program it keeps what it took in a file, which outlives it: `PubsubServer`.
"""

import argparse
import asyncio
import base64
import json
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from google.auth import jwt

from tests.brokers.program import Program
from tests.stub_server import Reply, Request, StubServer

PROJECT = "relay-test"
TOPIC = "relay"
REQUEST_MAX = 10 << 20

CODES = {
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "OUT_OF_RANGE": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "ABORTED": 409,
    "RESOURCE_EXHAUSTED": 429,
    "CANCELLED": 499,
    "INTERNAL": 500,
    "UNKNOWN": 500,
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}

_ROUTE = re.compile(r"/v1/projects/([^/:]+)/topics/([^/:]+)(:[a-zA-Z]+)?")


class Failed(Exception):
    """An answer that is a google.rpc.Status."""


def status(code: str, text: str, **more: Any) -> Reply:
    error = {"code": CODES[code], "message": text, "status": code, **more}
    return said({"error": error}, CODES[code])


def said(document: Any, number: int = 200) -> Reply:
    return Reply(number, json.dumps(document).encode(), {"content-type": "application/json"})


class PubsubDouble:
    """Answers requests; `certificate` verifies tokens that a service account signed itself."""

    def __init__(self, *, certificate: str | None = None, emulator: bool = False) -> None:
        self.certificate = certificate
        self.emulator = emulator
        self.topics = {TOPIC}
        self.may_publish = True
        self.messages: list[dict[str, Any]] = []
        self.requests: list[list[dict[str, Any]]] = []
        self.issued: list[str] = []
        self.lasts_s = 3600
        self.keep: Callable[[Iterable[dict[str, Any]]], None] = self.messages.extend
        self._count = 0

    def answer(self, request: Request) -> Reply:
        found = _ROUTE.fullmatch(urlsplit(request.target).path)
        if found is None:
            return self._google(request)
        try:
            self._authenticate(request)
            return self._pubsub(request, found[1], unquote(found[2]), found[3])
        except Failed as failed:
            return status(*failed.args)

    def _pubsub(self, request: Request, project: str, topic: str, verb: str | None) -> Reply:
        if (request.method, verb) == ("POST", ":testIamPermissions") and not self.emulator:
            return self._permissions(topic, request)
        if project != PROJECT or topic not in self.topics:
            raise Failed("NOT_FOUND", f"Resource not found (resource={topic}).")
        if (request.method, verb) == ("GET", None):
            return said({"name": f"projects/{project}/topics/{topic}"})
        if (request.method, verb) == ("POST", ":publish"):
            return self._publish(request)
        raise Failed("UNIMPLEMENTED", "Method not found.")

    def _authenticate(self, request: Request) -> None:
        if self.emulator:
            return
        scheme, _, token = request.header.get("authorization", "").partition(" ")
        if scheme == "Bearer" and token in self.issued:
            return
        try:
            claims = jwt.decode(token, certs=self.certificate or "")
        except ValueError:
            raise Failed(
                "UNAUTHENTICATED",
                "Request had invalid authentication credentials. Expected OAuth 2 access token.",
            ) from None
        if "https://www.googleapis.com/auth/pubsub" not in claims.get("scope", "").split():
            raise Failed("PERMISSION_DENIED", "Insufficient authentication scopes.")

    def _permissions(self, topic: str, request: Request) -> Reply:
        if topic not in self.topics or not self.may_publish:
            return said({})  # not an error, says the reference
        return said({"permissions": json.loads(request.body)["permissions"]})

    def _publish(self, request: Request) -> Reply:
        if not self.may_publish:
            raise Failed("PERMISSION_DENIED", "User not authorized to perform this action.")
        if len(request.body) > REQUEST_MAX:
            raise Failed("INVALID_ARGUMENT", "Request payload size exceeds the limit.")
        messages = json.loads(request.body).get("messages", [])
        _judge(messages)
        self.requests.append(messages)
        self.keep(messages)
        ids = [str(1_000_000 + self._count + number) for number in range(len(messages))]
        self._count += len(messages)
        return said({"messageIds": ids})

    def _google(self, request: Request) -> Reply:
        path = urlsplit(request.target).path
        if (request.method, path) == ("POST", "/token"):
            return self._token(parse_qs(request.body.decode()))
        if (request.method, path) == ("POST", "/sts"):
            return self._exchange(parse_qs(request.body.decode()))
        if request.header.get("metadata-flavor") != "Google":
            return Reply(404, b"<html>Error 404 (Not Found)!!1</html>")
        account = "/computeMetadata/v1/instance/service-accounts/default/"
        documents: dict[str, Callable[[], Any]] = {
            "/": dict,
            account: lambda: {"email": f"relay@{PROJECT}.iam.gserviceaccount.com"},
            f"{account}token": self.issue,
            "/computeMetadata/v1/project/project-id": lambda: PROJECT,
        }
        reply = said(documents[path]()) if path in documents else Reply(404)
        return Reply(reply.status, reply.body, {**reply.headers, "metadata-flavor": "Google"})

    def _token(self, form: dict[str, list[str]]) -> Reply:
        if form.get("grant_type") != ["refresh_token"] or form["refresh_token"] != ["good-login"]:
            return said({"error": "invalid_grant", "error_description": str(form)}, 400)
        return said(self.issue())

    def _exchange(self, form: dict[str, list[str]]) -> Reply:
        """Take another identity provider's token, as workload identity federation does."""
        if form.get("subject_token") != ["good-identity"]:
            return said({"error": "invalid_grant", "error_description": str(form)}, 400)
        more = {"issued_token_type": "urn:ietf:params:oauth:token-type:access_token"}
        return said(self.issue() | more)

    def issue(self) -> dict[str, Any]:
        self.issued.append(f"ya29.marked-token-{len(self.issued)}")
        return {
            "access_token": self.issued[-1],
            "expires_in": self.lasts_s,
            "token_type": "Bearer",
        }


def _judge(messages: list[dict[str, Any]]) -> None:
    """Raises Failed where the reference and the quotas forbid a message, or the lot."""
    if not 1 <= len(messages) <= 1000:
        raise Failed("INVALID_ARGUMENT", "The number of messages in the request is invalid.")
    if len({message.get("orderingKey", "") for message in messages}) > 1:
        raise Failed("INVALID_ARGUMENT", "All messages must have the same ordering key.")
    for message in messages:
        attributes = message.get("attributes", {})
        fine = (
            (message.get("data") or attributes)
            and len(attributes) <= 100
            and all(0 < len(name.encode()) <= 256 for name in attributes)
            and not any(name.startswith("goog") for name in attributes)
            and all(len(value.encode()) <= 1024 for value in attributes.values())
            and len(message.get("orderingKey", "").encode()) <= 1024
        )
        if not fine:
            raise Failed("INVALID_ARGUMENT", "A message is empty or one of its attributes invalid.")
        base64.b64decode(message.get("data", ""), validate=True)


class PubsubServer(Program):
    """The double as a program of its own, which takes events as an emulator does."""

    name = sys.executable

    def command(self) -> list[str]:
        return [self.name, "-m", __name__, "--port", str(self.port), "--record", str(self._record)]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def _record(self) -> Path:
        return self.folder / "messages.jsonl"

    def read(self) -> list[dict[str, Any]]:
        """List every message that was taken; of the last line a kill may have left a part."""
        return [json.loads(line) for line in self._record.read_text().split("\n")[:-1]]


async def _serve(port: int, record: Path) -> None:
    with record.open("ab+", buffering=0) as file:
        _mend(file)

        def keep(messages: Iterable[dict[str, Any]]) -> None:
            file.write(b"".join(json.dumps(each).encode() + b"\n" for each in messages))

        double = PubsubDouble(emulator=True)
        double.keep = keep
        destination = StubServer()
        destination.port = port
        destination.reply = double.answer
        await destination.listen()
        await asyncio.Event().wait()


def _mend(file: Any) -> None:
    """Drop what a kill left of a line: its request was never answered."""
    file.seek(0)
    content = file.read()
    file.truncate(content.rfind(b"\n") + 1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--record", type=Path, required=True)
    arguments = parser.parse_args()
    asyncio.run(_serve(arguments.port, arguments.record))
