"""A server that issues OAuth2 tokens to one client, and an API that takes them."""

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote_plus

from tests.stub_server import Reply, Request, StubServer


@dataclass
class TokenEndpoint:
    """`answer` issues tokens; `call` is the API, which takes those in `valid`."""

    server: StubServer = field(default_factory=StubServer)
    client_id: str = "marked client"
    secret: str = "marked+secret/1:of%20the client"
    ways: tuple[str, ...] = ("basic", "body")
    """In which the server lets a client show who it is."""
    lasts: object = 3600
    """Its `expires_in`; None for none."""
    issued: list[str] = field(default_factory=list)
    valid: set[str] = field(default_factory=set)

    def table(self, **more: object) -> dict[str, Any]:
        url = self.server.url("/token?tenant=marked-tenant")
        client = {"client_id": self.client_id, "client_secret": self.secret}
        return {"token_url": url, **client, **more}

    @property
    def asked(self) -> int:
        return len(self.server.requests)

    def form(self, index: int = -1) -> dict[str, str]:
        return dict(parse_qsl(self.server.requests[index].body.decode(), strict_parsing=True))

    def answer(self, request: Request) -> Reply:
        if self._login(request) != (self.client_id, self.secret):
            return said({"error": "invalid_client", "error_description": str(request)}, 401)
        self.issued.append(f"marked-token-{len(self.issued) + 1}")
        self.valid = {self.issued[-1]}
        lasts = {} if self.lasts is None else {"expires_in": self.lasts}
        return said({"access_token": self.issued[-1], "token_type": "Bearer", **lasts})

    def call(self, request: Request) -> Reply:
        token = request.header.get("authorization", "").removeprefix("Bearer ")
        return Reply(200 if token in self.valid else 401, str(request).encode())

    def _login(self, request: Request) -> tuple[str, ...]:
        form = dict(parse_qsl(request.body.decode(), strict_parsing=True))
        assert form["grant_type"] == "client_credentials"
        scheme, _, value = request.header.get("authorization", "").partition(" ")
        if scheme == "Basic" and "basic" in self.ways:
            assert "client_secret" not in form
            parts = base64.b64decode(value).decode().split(":")
            return tuple(map(unquote_plus, parts))
        if "body" in self.ways:
            return form.get("client_id", ""), form.get("client_secret", "")
        return ()


def said(document: object, status: int = 200, **headers: str) -> Reply:
    return Reply(status, json.dumps(document).encode(), headers)


@asynccontextmanager
async def issuing() -> AsyncIterator[TokenEndpoint]:
    endpoint = TokenEndpoint()
    async with endpoint.server:
        endpoint.server.reply = endpoint.answer
        yield endpoint
