"""A whole relay on PostgreSQL, through the commands that an operator has."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from relay.cli import main
from tests.admin.page.visiting import Visitor
from tests.guarantees.destinations import WELL, Destination, Mood
from tests.guarantees.process import SECRET, Relay, http_client, until
from tests.operator import ADMIN, TOKEN
from tests.store.places import PostgresPlace

pytestmark = pytest.mark.long

LEADS = 5


@pytest.fixture
async def crm() -> AsyncIterator[Destination]:
    async with Destination("crm") as crm:
        yield crm


@pytest.fixture
async def relay(
    tmp_path: Path, postgres_place: PostgresPlace, crm: Destination
) -> AsyncIterator[Relay]:
    relay = Relay(
        tmp_path,
        sinks=f'[[sink]]\nname = "crm"\ntype = "http"\nurl = "{crm.url}"\n',
        store=f'type = "postgres"\ndsn = "env:DATABASE_URL"\nschema = "{postgres_place.schema}"\n',
        rest=ADMIN,
        environ={"DATABASE_URL": postgres_place.server.dsn},
    )
    async with relay:
        await relay.start()
        yield relay


class Shell:
    """Runs commands of `relay` with the relay's config."""

    def __init__(self, relay: Relay, place: PostgresPlace) -> None:
        self._relay = relay
        self._environ = {"DATABASE_URL": place.server.dsn}

    async def run(self, *command: str, code: int = 0) -> Result:
        arguments = [*command, "--config", str(self._relay.config)]
        result = await asyncio.to_thread(CliRunner().invoke, main, arguments, env=self._environ)
        assert result.exit_code == code, f"{result.output}\n{self._relay.output()}"
        return result

    async def read(self, *command: str) -> Any:
        return json.loads((await self.run(*command, "--json")).stdout)

    async def send(self, kind: str, count: int) -> None:
        await self.run("send", kind, "--count", str(count), "--secret", SECRET)


@pytest.fixture
def shell(relay: Relay, postgres_place: PostgresPlace) -> Shell:
    return Shell(relay, postgres_place)


async def arrived(crm: Destination, count: int) -> None:
    await until(lambda: len(crm.arrivals) >= count, what=f"{count} deliveries")


async def settled(shell: Shell, *, pending: int = 0, dead: int = 0) -> None:
    """Wait until the status says so."""

    async def is_so() -> bool:
        (sink,) = (await shell.read("sinks", "list"))["sinks"]
        return (sink["pending"], sink["dead"]) == (pending, dead)

    await until(is_so, what=f"{pending} pending and {dead} dead")


async def test_events_are_delivered_and_listed(
    relay: Relay, shell: Shell, crm: Destination
) -> None:
    await shell.send("lead.captured", LEADS)
    await arrived(crm, LEADS)
    await settled(shell)
    assert len((await shell.read("events", "list"))["events"]) == LEADS
    status = await shell.read("status")
    assert status["well"], status["problems"]
    assert status["store"]["location"].startswith("schema relay ")
    assert await relay.metric("relay_leads_captured_total") == LEADS
    checked = await shell.read("store", "check")
    assert (checked["ok"], checked["events"]) == (True, LEADS)


async def test_the_figures_of_a_disk_are_not_exposed(relay: Relay) -> None:
    answer = await relay.ask("/metrics")
    assert answer is not None
    samples = [line for line in answer.text.splitlines() if not line.startswith("#")]
    assert not [line for line in samples if line.startswith("relay_store_free_bytes")]
    assert [line for line in samples if 'sqlite=""' in line and 'postgres="1' in line]
    assert await relay.metric("relay_store_bytes") > 0


async def test_counts_go_on_after_a_restart(relay: Relay, shell: Shell, crm: Destination) -> None:
    await shell.send("lead.captured", LEADS)
    await arrived(crm, LEADS)
    assert await relay.stop() == 0, relay.output()
    await relay.start()
    assert await relay.metric("relay_leads_captured_total") == LEADS
    assert not relay.lines("store.unclean")
    assert len((await shell.read("absences", "list"))["absences"]) <= 1


async def test_deliveries_pending_at_a_kill_are_made_afterwards(
    relay: Relay, shell: Shell, crm: Destination
) -> None:
    await shell.run("sinks", "pause", "crm")
    await shell.send("lead.captured", LEADS)
    await relay.kill()
    await relay.start()
    await settled(shell, pending=LEADS)
    assert crm.arrivals == []
    await shell.run("sinks", "resume", "crm")
    await arrived(crm, LEADS)
    await settled(shell)


async def test_dead_letters_are_listed_and_replayed(
    relay: Relay, shell: Shell, crm: Destination
) -> None:
    crm.mood = Mood(422)
    await shell.send("lead.captured", 2)
    await settled(shell, dead=2)
    assert len((await shell.read("dead-letters", "list"))["dead_letters"]) == 2
    crm.mood = WELL
    await shell.run("dead-letters", "replay", "--all")
    await settled(shell)
    assert sum(each.status == 200 for each in crm.arrivals) == 2


async def test_delivered_events_are_replayed(relay: Relay, shell: Shell, crm: Destination) -> None:
    await shell.send("video.ready", 3)
    await arrived(crm, 3)
    await settled(shell)
    await shell.run("replay", "--event", "video.*")
    await arrived(crm, 6)
    await settled(shell)


async def test_a_person_is_exported_and_erased(
    relay: Relay, shell: Shell, crm: Destination
) -> None:
    await shell.send("lead.captured", 1)
    await arrived(crm, 1)
    await settled(shell)
    (event,) = (await shell.read("events", "list"))["events"]
    shown = await shell.read("events", "show", event["id"])
    email = json.loads(shown["body"])["data"]["email"]
    assert len((await shell.read("export", email))["events"]) == 1
    assert (await shell.read("erase", email))["events"] == 1
    assert (await shell.read("export", email))["events"] == []


async def test_a_backup_is_refused_with_what_to_use_instead(
    relay: Relay, shell: Shell, tmp_path: Path
) -> None:
    result = await shell.run("store", "backup", str(tmp_path / "copy.db"), code=1)
    assert "pg_dump" in result.output
    assert not (tmp_path / "copy.db").exists()


async def test_the_page_shows_the_store_without_a_disk(relay: Relay, shell: Shell) -> None:
    await shell.send("lead.captured", 1)
    async with http_client(base_url=relay.admin_url) as client:
        visitor = Visitor(client)
        assert (await visitor.post("/login", {"token": TOKEN})).status_code == 303
        for path in ("/", "/events", "/dead-letters", "/sinks", "/audience", "/changes", "/people"):
            await visitor.see(path)
        store = (await visitor.see("/config")).by_id("store").text
    assert "schema relay " in store
    assert "Free on its disk" not in store
    assert "store backup" not in visitor.html
    assert "PostgreSQL" in visitor.html
