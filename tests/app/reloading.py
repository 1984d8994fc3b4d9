"""A running relay, its operator and the config file that is edited under it."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from relay import config
from tests import service
from tests.caller import post
from tests.operator import ADMIN, Operator, operating
from tests.service import ENVIRON, Relay
from tests.stub_server import StubServer


def body(event_id: str, kind: str = "lead.captured") -> bytes:
    return orjson.dumps({"id": event_id, "event": kind, "data": {}})


def sink(name: str, url: str, more: str = "") -> str:
    return service.SINK.format(name=name, url=url, more=more)


@dataclass
class Party:
    """A relay, its operator and its config file."""

    folder: Path
    relay: Relay
    operator: Operator

    def write(self, *tables: str, server: str = "", admin: str = ADMIN, more: str = "") -> None:
        text = document(self.folder, *tables, server=server, admin=admin) + more
        (self.folder / "config.toml").write_text(text, encoding="utf-8")

    async def reload(self, *tables: str, status: int = 200, **rest: str) -> Any:
        """Write the config and request a reload; return the response."""
        self.write(*tables, **rest)
        answer = await self.operator.client.post("/-/reload")
        assert answer.status_code == status, answer.text
        return answer.json()

    async def send(self, *event_ids: str) -> None:
        for each in event_ids:
            assert (await self.relay.ask(post(body(each)))).status == 202

    async def successful(self) -> float:
        return (await self.relay.counts("relay_config_last_reload_successful")).get((), 0.0)


def document(folder: Path, *tables: str, server: str = "", admin: str = ADMIN) -> str:
    return service.DOCUMENT.format(
        folder=folder, server=server, min_free="1MiB", tables=admin + "".join(tables)
    )


@contextlib.asynccontextmanager
async def party(folder: Path, *tables: str, server: str = "") -> AsyncIterator[Party]:
    file = folder / "config.toml"
    file.write_text(document(folder, *tables, server=server), encoding="utf-8")
    settings = config.load(file, ENVIRON)
    async with service.serving(settings) as relay, operating(relay) as operator:
        yield Party(folder, relay, operator)


def ids(destination: StubServer) -> list[str]:
    return [orjson.loads(request.body)["id"] for request in destination.requests]
