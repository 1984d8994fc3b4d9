"""Operators see the relays that share a store, at each of them."""

import asyncio
from pathlib import Path

import pytest
from click.testing import CliRunner

from relay.cli import main
from relay.cli.status import REVISION_SHOWN
from tests.admin.page.visiting import visiting
from tests.app.cluster import SALES, cluster, settings
from tests.guarantees.process import until
from tests.operator import TOKEN
from tests.service import ENVIRON
from tests.store.places import PostgresPlace
from tests.stub_server import StubServer

pytestmark = pytest.mark.long


async def test_each_member_lists_all_in_the_api_the_command_and_the_page(
    tmp_path: Path, place: PostgresPlace, destination: StubServer
) -> None:
    configs = [settings(tmp_path / name, place, destination) for name in ("a", "b")]
    async with cluster(place, *configs) as members:
        addresses = {each.relay.service.admin.url for each in members}
        for each in members:
            report = await each.operator.get("/status")
            known = report["cluster"]["members"]
            assert {one["address"] for one in known} == addresses
            (me,) = (one for one in known if one["is_self"])
            assert me["address"] == each.relay.service.admin.url
            assert sorted(sink for one in known for sink in one["sinks"]) == [SALES]
            assert len({one["config"] for one in known}) == 1
            assert report["problems"] == []
            assert [sink["name"] for sink in report["sinks"]] == [SALES]
            arguments = ["status", "--url", each.relay.service.admin.url, "--token", TOKEN]
            shown = await asyncio.to_thread(CliRunner().invoke, main, arguments)
            assert all(address in shown.output for address in addresses)
            assert ":maintenance" not in shown.output
            async with visiting(each.relay) as visitor:
                for path in ("/", "/sinks", f"/sinks/{SALES}"):
                    await visitor.see(path)
                page = (await visitor.see("/config")).text
            assert all(address in page for address in addresses)
            assert ":maintenance" not in page


async def test_two_builds_of_one_version_are_told_apart(
    tmp_path: Path, place: PostgresPlace, monkeypatch: pytest.MonkeyPatch, destination: StubServer
) -> None:
    revisions = ["0123456789abcdef", "fedcba9876543210"]
    monkeypatch.setitem(ENVIRON, "RELAY_REVISION", revisions[0])
    configs = [settings(tmp_path / name, place, destination) for name in ("a", "b")]
    async with cluster(place, *configs) as members:
        one, other = members
        # A heartbeat leaves it as it is.
        place.rows(
            "UPDATE relay.members SET revision = %s WHERE address = %s",
            revisions[1],
            other.relay.service.admin.url,
        )
        report = await one.operator.get("/status")
        assert {each["revision"] for each in report["cluster"]["members"]} == set(revisions)
        assert len({each["version"] for each in report["cluster"]["members"]}) == 1
        arguments = ["status", "--url", one.relay.service.admin.url, "--token", TOKEN]
        shown = (await asyncio.to_thread(CliRunner().invoke, main, arguments)).output
        async with visiting(one.relay) as visitor:
            page = (await visitor.see("/config")).text
        for each in revisions:
            assert each[:REVISION_SHOWN] in shown
            assert f"revision {each}" in page


async def test_members_with_different_configs_are_a_problem_and_a_metric_at_each(
    tmp_path: Path, place: PostgresPlace, destination: StubServer
) -> None:
    configs = [
        settings(tmp_path / "a", place, destination),
        settings(tmp_path / "b", place, destination, more='timeout = "7s"'),
    ]
    async with cluster(place, *configs) as members:
        for each in members:
            await each.relay.until_counted("relay_members_configs_differ")
            await each.relay.until_counted("relay_members", "live", value=2)
            report = await each.operator.get("/status")
            (problem,) = report["problems"]
            assert problem["what"] == "the members have different configs"
            digests = {one["config"] for one in report["cluster"]["members"]}
            assert len(digests) == 2
            assert all(digest in problem["why"] for digest in digests)


async def test_only_the_owner_exposes_the_state_of_a_sink(
    tmp_path: Path, place: PostgresPlace, destination: StubServer
) -> None:
    configs = [settings(tmp_path / name, place, destination) for name in ("a", "b")]
    async with cluster(place, *configs) as members:

        async def exposing() -> list[bool]:
            texts = [await each.relay.metrics() for each in members]
            return ["relay_sink_state{" in text for text in texts]

        owners = [each.owns() for each in members]
        assert sorted(owners) == [False, True]

        async def is_right() -> bool:
            return await exposing() == [each.owns() for each in members]

        await until(is_right, what="the state at the owner alone")
