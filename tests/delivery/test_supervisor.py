"""All sinks at work: paused, tried and woken by name, and closed whatever goes wrong with one."""

import asyncio
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

import pytest

from relay.app.service import Service
from relay.core.errors import Temporary
from tests import service
from tests.admin.test_api import body
from tests.caller import post
from tests.service import Relay, ShiftedClock
from tests.sinks.far_end import FarEnd, until

QUICK = """
[[sink]]
name = "quick"
type = "http"
url = "{url}"
timeout = "1s"
"""


def serving(folder: Path, far_end: FarEnd) -> AbstractAsyncContextManager[Relay]:
    return service.serving(service.read(folder, far_end=far_end))


async def test_a_sink_that_is_not_there_is_named_by_an_error_or_harmless(tmp_path: Path) -> None:
    async with FarEnd() as far_end, serving(tmp_path, far_end) as relay:
        fleet = relay.service.supervisor
        for work in (fleet.pause, fleet.resume, fleet.check):
            with pytest.raises(KeyError):
                await work("nobody")
        fleet.wake("nobody")
        assert "nobody" not in fleet
        assert set(fleet.names) == set(fleet.conditions()) == {"all", "leads", "tests"}
        assert await fleet.paused() == {}


async def test_a_check_ends_with_the_sinks_own_time_limit(tmp_path: Path) -> None:
    async with FarEnd() as far_end:
        tables = QUICK.format(url=far_end.url("/quick"))
        async with service.serving(service.read(tmp_path, tables=tables)) as relay:
            await relay.service.supervisor.check("quick")
            far_end.reply = lambda _: None
            with pytest.raises(Temporary, match="no answer within 1 s"):
                await relay.service.supervisor.check("quick")


async def test_a_sink_that_is_paused_is_so_for_all_who_ask(tmp_path: Path) -> None:
    async with FarEnd() as far_end, serving(tmp_path, far_end) as relay:
        fleet = relay.service.supervisor
        await fleet.pause("leads")
        assert fleet.conditions()["leads"].state == "paused"
        assert set(await fleet.paused()) == {"leads"}
        await fleet.resume("leads")
        assert fleet.conditions()["leads"].state == "active"
        assert await fleet.paused() == {}
        assert [line["sink"] for line in relay.lines("sink.paused")] == ["leads"]
        assert [line["sink"] for line in relay.lines("sink.resumed")] == ["leads"]


async def test_what_waits_for_a_sink_that_is_gone_is_told_at_the_start(tmp_path: Path) -> None:
    async with FarEnd() as far_end:
        async with service.serving(service.read(tmp_path, far_end=far_end)) as relay:
            await relay.service.supervisor.pause("leads")
            assert (await relay.ask(post(body("a")))).status == 202
            await until(lambda: len(far_end.requests) == 1, what="the other sink's delivery")
        tables = QUICK.format(url=far_end.url("/quick"))
        async with service.serving(service.read(tmp_path, tables=tables)) as relay:
            (line,) = relay.lines("sink.not_configured")
            assert (line["sink"], line["pending"]) == ("leads", 1)


async def test_one_sink_that_cannot_be_closed_leaves_none_open(tmp_path: Path) -> None:
    closed: list[str] = []

    def closing(name: str) -> object:
        async def close() -> None:
            closed.append(name)
            raise OSError(name)

        return close

    async with FarEnd() as far_end:
        settings = service.read(tmp_path, far_end=far_end)
        opened = await Service.open(settings, clock=ShiftedClock())
        try:
            for member in opened.supervisor._everyone():
                await member.sink.close()
                member.sink.close = closing(member.name)  # type: ignore[method-assign,assignment]
            with pytest.raises(OSError, match=r"all|leads|tests"):
                await opened.supervisor.close()
        finally:
            await opened._store.close()
    assert sorted(closed) == ["all", "leads", "tests"]


async def test_sinks_that_part_are_not_held_up_by_one_that_hangs_or_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []

    async def closing(name: str) -> None:
        closed.append(name)
        if name == "all":
            await asyncio.Event().wait()
        if name == "leads":
            raise OSError(name)

    monkeypatch.setattr("relay.delivery.supervisor.CLOSE_TIMEOUT_S", 0.1)
    async with FarEnd() as far_end:
        settings = service.read(tmp_path, far_end=far_end)
        opened = await Service.open(settings, clock=ShiftedClock())
        try:
            for member in opened.supervisor._everyone():
                await member.sink.close()
                monkeypatch.setattr(member.sink, "close", partial(closing, member.name))
            await opened.supervisor.part()
            await opened.supervisor.close()
        finally:
            await opened._store.close()
    assert closed == ["all", "leads", "tests"]
