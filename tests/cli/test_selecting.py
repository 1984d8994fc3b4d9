"""Paging, events by id prefix, and dry runs."""

import asyncio
import contextlib
import json
import shlex
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path

from click.testing import CliRunner, Result

from relay.cli import main
from tests import service
from tests.admin.test_api import body, send
from tests.cli.scene import plain
from tests.operator import ADMIN, TOKEN
from tests.service import Relay
from tests.stub_server import Reply, StubServer, until

SINK = service.SINK.format(name="crm", url="{url}", more="{more}")

Run = Callable[..., Coroutine[None, None, Result]]


@contextlib.asynccontextmanager
async def commanding(
    folder: Path, destination: StubServer, more: str = ""
) -> AsyncIterator[tuple[Relay, Run]]:
    tables = ADMIN + SINK.format(url=destination.url("/crm"), more=more)
    async with service.serving(service.read(folder, tables=tables)) as relay:
        way = ("--url", relay.service.admin.url, "--token", TOKEN)

        async def run(*arguments: str) -> Result:
            return await asyncio.to_thread(CliRunner().invoke, main, [*arguments, *way])

        yield relay, run


def hint(output: str) -> list[str]:
    """Return the arguments of the next-page command, without those that select the relay."""
    words = shlex.split(output.partition("Next page: ")[2].splitlines()[0])
    place = words.index("--url")
    return words[1:place] + words[place + 4 :]


async def paged(run: Run, *arguments: str) -> list[str]:
    """Return the ids of a list, following the next-page command of each page."""
    listed: list[str] = []
    command = list(arguments)
    while True:
        printed = (await run(*command)).output
        page, _, _ = printed.partition("Next page: ")
        ids = [word for line in page.splitlines() for word in line.split() if word[:2] == "e-"]
        listed += ids
        if "Next page: " not in printed:
            return listed
        command = hint(printed)


async def test_the_next_page_command_keeps_every_option(tmp_path: Path) -> None:
    async with StubServer() as destination, commanding(tmp_path, destination) as (relay, run):
        # A fifth one would park the sink.
        destination.reply = lambda _: Reply(422)
        await send(relay, *(body(f"e-{number}") for number in range(4)))
        await relay.until_counted("relay_deliveries_total", "dead", "crm", value=4)
        every = [f"e-{number}" for number in reversed(range(4))]
        reason = "422: the destination"
        filters = ["--sink", "crm", "--reason", reason, "--since", "1h", "--limit", "1"]
        printed = (await run("events", "list", *filters)).output
        again = hint(printed)
        assert again[:2] == ["events", "list"]
        assert again[-2] == "--before"
        assert again[again.index("--reason") + 1] == reason
        assert await paged(run, "events", "list", *filters) == every
        # What follows the table of a page is one line for each reason.
        letters = await paged(run, "dead-letters", "list", *filters)
        assert letters == every


async def test_the_cursor_is_in_the_json(tmp_path: Path, destination: StubServer) -> None:
    async with commanding(tmp_path, destination) as (relay, run):
        await send(relay, body("a"), body("b"), body("c"))
        page = json.loads((await run("events", "list", "--limit", "2", "--json")).output)
        rest = await run("events", "list", "--before", str(page["next"]), "--json")
        assert [each["id"] for each in json.loads(rest.output)["events"]] == ["a"]
        assert json.loads((await run("replays", "list", "--json")).output)["next"] is None


async def test_an_unambiguous_id_prefix_is_enough(tmp_path: Path, destination: StubServer) -> None:
    async with commanding(tmp_path, destination) as (relay, run):
        await send(relay, body("evt_1"), body("evt_12"), body("evt_2"))
        assert "event     evt_2\n" in (await run("events", "show", "evt_2")).output
        assert "event     evt_12\n" in (await run("events", "show", "evt_12")).output
        assert "event     evt_1\n" in (await run("events", "show", "evt_1")).output
        several = await run("events", "show", "evt_")
        assert several.exit_code == 1
        assert several.output.splitlines() == [
            "relay: several ids start with evt_; give more characters:",
            *(f"relay:   main  lead.captured  {each}" for each in ("evt_1", "evt_12", "evt_2")),
        ]
        empty = await run("events", "show", "")
        assert empty.exit_code == 2
        assert "give the event's id, or its beginning" in empty.output
        unknown = await run("events", "show", "nothing")
        assert unknown.exit_code == 1
        assert unknown.output.startswith("relay: no event has an id that starts with nothing; ")


async def test_an_event_shows_the_response_excerpt_escaped(tmp_path: Path) -> None:
    async with StubServer() as destination, commanding(tmp_path, destination) as (relay, run):
        destination.reply = lambda _: Reply(422, "no such field\n\x1b[2J\u202egnol".encode())
        await send(relay, body("a"))
        await relay.until_counted("relay_deliveries_total", "dead", "crm")
        output = (await run("events", "show", "a")).output
        assert "answer: no such field" in output
        assert not {"\x1b", "\u202e"} & set(output)


async def test_a_pending_delivery_shows_its_blocker(tmp_path: Path) -> None:
    slow = '[sink.retry]\nfirst = "1h"\nmax = "1h"'
    async with StubServer() as destination, commanding(tmp_path, destination, slow) as (relay, run):
        destination.reply = lambda _: Reply(503, headers={"retry-after": "600"})
        await send(relay, body("first"))
        await until(lambda: bool(destination.requests), what="the try")
        await relay.until_counted("relay_sink_state", "crm", "throttled")
        await send(relay, body("behind"))
        output = (await run("events", "show", "behind")).output
        assert "crm  pending, waits: sink is throttled, next try in " in output
        assert "crm  pending, due in " in (await run("events", "show", "first")).output
        await run("sinks", "pause", "crm")
        output = (await run("events", "show", "behind")).output
        assert "crm  pending, waits: sink is paused\n" in output


async def test_a_pending_delivery_with_others_ahead_of_it_is_never_due_now(tmp_path: Path) -> None:
    slow = 'rate = "1/h"'
    async with StubServer() as destination, commanding(tmp_path, destination, slow) as (relay, run):
        await send(relay, *(body(f"event-{number}") for number in range(5)))
        await relay.until_counted("relay_deliveries_total", "delivered", "crm", value=1)
        output = (await run("events", "show", "event-4")).output
        assert "crm  pending, waits behind 3" in output


async def test_a_dry_run_shows_the_effect_and_a_selection_is_required(tmp_path: Path) -> None:
    async with StubServer() as destination, commanding(tmp_path, destination) as (relay, run):
        destination.reply = lambda _: Reply(422)
        await send(relay, body("a"), body("b"))
        await relay.until_counted("relay_deliveries_total", "dead", "crm", value=2)
        for command in ("dead-letters replay", "dead-letters discard", "replay"):
            assert (await run(*command.split())).exit_code == 2
            assert (await run(*command.split(), "--dry-run")).exit_code == 2
        dry = await run("dead-letters", "replay", "--all", "--dry-run")
        assert dry.output.splitlines() == [
            "DELIVERIES  SINK  REASON",
            "2           crm   422: the destination refuses this event",
            "2 in all; repeat without --dry-run to deliver them.",
        ]
        dry = await run("dead-letters", "discard", "--sink", "crm", "--dry-run")
        assert [plain(line) for line in dry.output.splitlines()] == [
            "COUNT FIRST LAST SINK REASON",
            "2 <age> <age> crm 422: the destination refuses this event",
            "2 in all; repeat without --dry-run to discard them.",
        ]
        assert (await run("dead-letters", "discard", "--all")).output == "2 discarded.\n"
        nothing = await run("dead-letters", "replay", "--all")
        assert nothing.exit_code == 1
        assert nothing.output == "relay: Nothing to replay: no dead letter matches.\n"
        dry = await run("dead-letters", "discard", "--all", "--dry-run")
        assert dry.output == "Nothing to discard: no dead letter matches.\n"
        for command in ("list", "replay", "discard"):
            refused = await run("dead-letters", command, "--outcome", "pending")
            assert refused.exit_code != 0
            assert "dead letter" in refused.output


async def test_a_cancelled_replay_shows_its_deliveries_in_progress(tmp_path: Path) -> None:
    one = "concurrency = 1"
    async with StubServer() as destination, commanding(tmp_path, destination, one) as (relay, run):
        await send(relay, body("a"), body("b"), body("c"))
        await relay.until_counted("relay_deliveries_total", "delivered", "crm", value=3)
        destination.reply = lambda _: None
        replaying = asyncio.create_task(run("replay", "--all"))
        await until(lambda: len(destination.requests) > 3, what="the replay under way")
        cancelled = (await run("replays", "cancel", "1")).output
        # The other command's first line may be in it: both share the process's stdout.
        line = "Replay 1 is cancelled: 0 of 3 deliveries settled, 1 in progress."
        assert cancelled.splitlines()[-1] == line
        await destination.stop()
        await replaying
