"""The topics of one project, over Pub/Sub's REST API (brokers.md, section 9)."""

from functools import lru_cache
from urllib.parse import quote

import orjson

from relay.core import timeouts
from relay.core.clock import Clock
from relay.core.errors import Misconfigured
from relay.outbound.http import client as http_client
from relay.outbound.http import responses
from relay.outbound.http.responses import HttpResponse
from relay.sinks.pubsub import errors
from relay.sinks.pubsub import tokens as google_tokens

SCOPE = "https://www.googleapis.com/auth/pubsub"
PUBLISH = "pubsub.topics.publish"

_HEADERS = (
    ("content-type", "application/json"),
    ("user-agent", http_client.USER_AGENT),
    ("accept", "application/json"),
    ("accept-encoding", "identity"),
)


class Topics:
    """Authenticates with the tokens; without them it talks to an emulator."""

    def __init__(
        self,
        project_url: str,
        *,
        tokens: google_tokens.GoogleTokens | None,
        clock: Clock,
        client: http_client.HttpClient,
    ) -> None:
        """`project_url` is up to the project's name: `https://…/v1/projects/my-project-123`."""
        self._project_url = project_url
        self._tokens = tokens
        self._clock = clock
        self._client = client

    async def publish(self, topic: str, body: bytes) -> HttpResponse:
        """Publish the messages of a request's JSON; returns a 2xx, and raises SinkError."""
        return await self._ask("POST", topic, ":publish", body)

    async def check(self, topic: str) -> None:
        """Raise SinkError where publishing would fail."""
        if self._tokens is None:
            await self._ask("GET", topic)
            return
        # Any account may ask this; a publisher may not read the topic.
        body = orjson.dumps({"permissions": [PUBLISH]})
        response = await self._ask("POST", topic, ":testIamPermissions", body)
        granted = responses.document(response).get("permissions")
        if not isinstance(granted, list) or PUBLISH not in granted:
            await self._ask("GET", topic)  # raises where there is no topic
            raise Misconfigured(f"the credentials lack {PUBLISH} on the topic {topic}")

    async def close(self) -> None:
        if self._tokens is not None:
            await self._tokens.close()
        await self._client.close()

    async def _ask(
        self, method: str, topic: str, verb: str = "", body: bytes = b""
    ) -> HttpResponse:
        token = {} if self._tokens is None else await self._tokens.headers()
        if token:
            timeouts.restart()  # the wait for a token is no part of the request's time
        endpoint = _endpoint(self._project_url, topic, verb)
        response = await self._client.exchange(
            endpoint, method=method, headers=(*_HEADERS, *token.items()), body=body
        )
        if response.status == 401 and self._tokens is not None:
            self._tokens.forget(token)
        errors.raise_for_status(response, now_ms=self._clock.now_ms())
        return response


@lru_cache(maxsize=64)
def _endpoint(project_url: str, topic: str, verb: str) -> http_client.HttpEndpoint:
    """Cached, because parsing one costs as much as some messages."""
    return http_client.HttpEndpoint.of(f"{project_url}/topics/{quote(topic, safe='')}{verb}")
