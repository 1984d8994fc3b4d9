"""Some minutes of two relays on one database, by the real clocks."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from relay import config
from tests import service
from tests.admin.figures.day import OTHER, SINKS, Destinations, body, lead, watched
from tests.admin.page.visiting import ADMIN
from tests.app import cluster
from tests.app.cluster import Member
from tests.caller import SECRET, post, signed
from tests.service import ENVIRON, OTHER_SECRET
from tests.store.places import PostgresPlace
from tests.stub_server import StubServer

DEADLINE_S = 30.0
TAKERS = ("crm", "billing", "rebuilt")
"""The others fail, and may have moved to a relay that has not throttled them yet."""


def _settings(folder: Path, place: PostgresPlace, destination: StubServer) -> config.Config:
    folder.mkdir()
    sinks = "".join(
        service.SINK.format(name=name, url=destination.url(f"/{name}"), more=more)
        for name, more in SINKS.items()
    )
    document = cluster.DOCUMENT.format(dsn=place.server.dsn, schema=place.schema)
    file = folder / "config.toml"
    file.write_text(document + ADMIN + OTHER + sinks, encoding="utf-8")
    return config.load(file, ENVIRON)


@contextlib.asynccontextmanager
async def played(folder: Path, place: PostgresPlace) -> AsyncIterator[list[Member]]:
    """Two relays after their minutes: one has been restarted, and the other had all sinks."""
    destinations = Destinations()
    async with StubServer() as destination:
        destination.reply = destinations.reply
        a, b = (_settings(folder / name, place, destination) for name in "ab")
        async with cluster.cluster(place, a, b) as members:
            await _morning(members, destinations)
        async with cluster.cluster(place, a, b) as members:
            await _evening(members)
            yield members


async def _send(member: Member, *bodies: bytes, target: str = "/webhooks") -> list[int]:
    secret = OTHER_SECRET if target == "/other" else SECRET
    statuses = []
    for each in bodies:
        header = "Service-Signature", signed(each, secret=secret)
        request = post(each, header, target=target, sign=False)
        statuses.append((await member.relay.ask(request)).status)
    return statuses


async def _morning(members: list[Member], destinations: Destinations) -> None:
    first, second = members
    await first.operator.post("/sinks/mail/pause")
    leads = [lead(f"person-{number}") for number in range(8)]
    assert set(await _send(first, *leads[:4]) + await _send(second, *leads[4:])) == {202}
    await _settled(first)
    assert await _send(second, leads[0]) == [200]
    views = [watched(f"viewer-{number}", "started") for number in range(9)]
    assert set(await _send(second, *views, body("video.ready", id="vid_1"))) == {202}
    assert await _send(first, b"[]", lead("second")) == [200, 202]
    assert await _send(second, lead("other"), target="/other") == [202]
    await _settled(second)
    destinations.refusals = 2
    replay = await second.operator.post("/replays", {"sink": "billing", "outcome": "dead"})
    async with asyncio.timeout(DEADLINE_S):
        while (await first.operator.get(f"/replays/{replay['id']}"))["state"] == "running":
            await asyncio.sleep(0.1)
    await _settled(first)


async def _evening(members: list[Member]) -> None:
    first, second = members
    views = [watched(f"late-{number}", "50%") for number in range(6)]
    leads = [lead(f"late-{number}") for number in range(6)]
    assert set(await _send(first, *views) + await _send(second, *leads)) == {202}
    await _settled(first)
    await first.operator.get("/audience")


async def _settled(member: Member) -> None:
    """Wait until the database has nothing pending for sinks that take everything."""
    async with asyncio.timeout(DEADLINE_S):
        while any(map(_is_busy, (await member.operator.get("/sinks"))["sinks"])):
            await asyncio.sleep(0.1)


def _is_busy(sink: dict[str, Any]) -> bool:
    condition = sink["condition"]
    return bool(condition["in_flight"] or (condition["name"] in TAKERS and sink["pending"]))
