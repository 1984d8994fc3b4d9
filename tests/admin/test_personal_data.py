"""Personal data of a running relay is erased and exported, by commands and API."""

import asyncio
import contextlib
import re
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from relay.app import eraser
from relay.core import signature
from relay.core.errors import StoreFull
from relay.store.personal_data_removal import PersonalDataRemoval
from tests import service
from tests.admin.test_api import body, send, working
from tests.cli.scene import Scene, plain, staged
from tests.guarantees.process import SECRET, Relay, http_client, until
from tests.operator import ADMIN, TOKEN, Operator, operating
from tests.stub_server import Reply, Request, StubServer

ANN = "ann.lee@example.com"
CASES = ("Ann.Lee@Example.com", "ANN.LEE@EXAMPLE.COM", "ann.lee\\u0040example.com")
SECOND_LINE = "Her own words, and her number 555-0137"
DOCUMENT = Path(__file__).parents[2] / "docs" / "privacy.md"

_SINK = '[[sink]]\nname = "{name}"\ntype = "http"\nurl = "{url}"\n{more}\n'
_SHORT = "drain_timeout = '500ms'"
_HANGS = "timeout = '60s'\nconcurrency = 1"


def in_files(folder: Path, *texts: str) -> list[str]:
    """Return the files that contain one of the texts, case-insensitively."""
    found = []
    for text in texts:
        search = ["grep", "--recursive", "-ilaF", "-e", text, str(folder)]
        done = subprocess.run(search, capture_output=True, check=False)
        assert done.returncode in (0, 1), done.stderr
        found += done.stdout.decode().splitlines()
    return found


def answered(request: Request) -> Reply | None:
    """One sink echoes the event, one refuses it, one is down, one never answers."""
    match request.target:
        case "/echo":
            return Reply(200, request.body)
        case "/refuses":
            return Reply(422, b"no: " + request.body)
        case "/down":
            return Reply(503)
    return None


class Sender:
    """Signs and sends to a relay's public side."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay

    async def send(self, content: bytes) -> dict[str, Any]:
        header = signature.header(SECRET.encode(), now_s=int(time.time()), body=content)
        async with http_client() as client:
            answer = await client.post(
                self._relay.url, content=content, headers={"service-signature": header}
            )
        assert answer.is_success, answer.text
        found: dict[str, Any] = answer.json()
        return found


def lead(event_id: str, email: str) -> bytes:
    """As text, so that an escape is kept."""
    data = f'{{"email":"{email}","name":"N. N.","fields":{{"words":"{SECOND_LINE}"}}}}'
    return f'{{"id":"{event_id}","event":"lead.captured","data":{data}}}'.encode()


@contextlib.asynccontextmanager
async def busy(folder: Path, destination: StubServer) -> AsyncIterator[Relay]:
    """A relay with delivered, refused, pending and in-flight deliveries."""
    destination.reply = answered
    sinks = "".join(
        _SINK.format(name=name, url=destination.url(f"/{name}"), more=more)
        for name, more in (("echo", ""), ("refuses", ""), ("down", ""), ("hangs", _HANGS))
    )
    async with Relay(folder, sinks=sinks, rest=ADMIN, server=_SHORT) as relay:
        await relay.start()
        yield relay


async def asked(relay: Relay, path: str, content: dict[str, object]) -> Any:
    async with http_client() as client:
        answer = await client.post(
            f"{relay.admin_url}/api/v1/people/{path}",
            json=content,
            headers={"authorization": f"Bearer {TOKEN}"},
        )
    assert answer.is_success, answer.text
    return answer.json()


@pytest.mark.servers
async def test_after_an_erasure_no_file_of_a_running_relay_holds_the_address(
    tmp_path: Path, destination: StubServer
) -> None:
    async with busy(tmp_path, destination) as relay:
        sender = Sender(relay)
        for number, email in enumerate((ANN, *CASES)):
            await sender.send(lead(f"evt_{number}", email))
        watched = {"viewer": {"email": CASES[0]}, "video": {"id": "v1"}, "milestone": "50%"}
        await sender.send(orjson.dumps({"id": "evt_w", "event": "video.watched", "data": watched}))
        await sender.send(orjson.dumps({"id": "evt_b", "event": "lead.captured", "data": {}}))
        assert (await sender.send(f"not JSON: <{ANN}> {SECOND_LINE}".encode()))["status"] == (
            "unreadable"
        )

        async def all_at_work() -> bool:
            delivered = await relay.metric("relay_deliveries_total", sink="echo")
            dead = await relay.metric("relay_dead_letters", sink="refuses")
            tried = {request.target for request in destination.requests}
            # The fifth refusal parks the sink: what is refused from then on waits.
            return delivered >= 6 and dead >= 4 and {"/down", "/hangs"} <= tried

        await until(all_at_work, what="deliveries of every kind")
        folder = relay.store.parent
        assert in_files(folder, ANN)
        before = await asked(relay, "erase/count", {"email": CASES[1]})
        assert in_files(folder, ANN)
        erased = await asked(relay, "erase", {"email": CASES[1]})

        assert erased["wiped"]
        assert in_files(folder, ANN, CASES[2], SECOND_LINE) == []
        assert (erased["events"], erased["unreadable"], erased["dead"]) == (5, 1, 4)
        assert erased["pending"] == 11
        assert {each["sink"] for each in erased["told"]} == {"echo"}
        assert {each["sink"] for each in erased["unconfirmed"]} >= {"refuses", "down"}
        assert ("hangs", "evt_0") in {(each["sink"], each["id"]) for each in erased["under_way"]}
        assert before["told"] == erased["told"]
        assert (before["events"], before["pending"]) == (5, 11)

        await relay.stop()
        await relay.start()
        assert (await sender.send(lead("evt_0", ANN)))["status"] == "duplicate"
        assert await asked(relay, "erase/count", {"email": ANN}) == {
            **dict.fromkeys(
                ("events", "pending", "dead", "unreadable", "quarantine", "excerpts", "reasons"), 0
            ),
            "searches": 0,
            "views": 0,
            "videos": 0,
            "reports": 0,
            "kept_ids": 0,
            "told": [],
            "unconfirmed": [],
            "under_way": [],
            "wiped": False,
            "remains": "",
        }
        assert in_files(folder, ANN, CASES[2], SECOND_LINE) == []
        assert ANN not in relay.log.read_text().lower()


@pytest.mark.servers
async def test_repeating_an_erasure_completes_a_killed_one(tmp_path: Path) -> None:
    async with StubServer() as destination, busy(tmp_path, destination) as relay:
        destination.reply = lambda _: Reply()
        sender = Sender(relay)
        await asyncio.gather(*(sender.send(lead(f"evt_{n}", ANN)) for n in range(60)))
        erasing = asyncio.create_task(asked(relay, "erase", {"email": ANN}))
        await asyncio.sleep(0)
        await relay.kill()
        with contextlib.suppress(Exception):
            await erasing
        await relay.start()
        assert (await asked(relay, "erase", {"email": ANN}))["wiped"]
        assert in_files(relay.store.parent, ANN) == []


async def test_the_api_refuses_an_invalid_address(operator: Operator) -> None:
    for path in ("/people/erase", "/people/erase/count", "/people/export"):
        for wrong in ({}, {"email": "ann"}, {"email": ""}, {"email": 7}, {"email": "a@"}):
            problem = await operator.post(path, wrong, status=400)
            assert "email" in problem["detail"]
    problem = await operator.post("/people/export", {"email": ANN, "after": "x"}, status=400)
    assert "after" in problem["detail"]


async def test_an_export_holds_only_data_of_the_person(tmp_path: Path) -> None:
    async with StubServer() as destination, working(tmp_path, destination) as (relay, operator):
        destination.reply = lambda _: Reply(200, f"owner: {ANN}".encode())
        await send(relay, body("a", email=CASES[0]), body("b", email=f"jo{ANN}"))
        await relay.until_counted("relay_deliveries_total", "delivered", "all", value=2)
        await relay.until_counted("relay_deliveries_total", "delivered", "leads", value=2)
        found = await operator.post("/people/export", {"email": ANN})
        (event,) = found["events"]
        assert orjson.loads(event["body"])["data"] == {"email": CASES[0]}
        assert {each["sink"] for each in event["attempts"]} == {"all", "leads"}
        assert {each["id"] for each in found["mentions"]} == {"b"}
        assert (found["unreadable"], found["next"]) == ([], None)
        await operator.post("/people/erase", {"email": ANN})
        (record,) = (await operator.get("/people/erasures"))["erasures"]
        assert (record["erasure"]["events"], record["erasure"]["excerpts"]) == (1, 2)
        assert ANN not in str(record)
        backlog = await operator.get("/events", id="b")
        assert backlog["events"][0]["bytes"] is not None


def shown() -> list[tuple[str, list[str]]]:
    """Return the commands of the document with their output there."""
    blocks = re.findall(r"```console\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    parts = [
        part for block in blocks for part in re.split(r"^\$ relay ", block, flags=re.MULTILINE)[1:]
    ]
    return [(part.split("\n")[0], part.rstrip("\n").split("\n")[1:]) for part in parts]


@pytest.mark.servers
async def test_the_commands_print_the_output_of_the_document(tmp_path: Path) -> None:
    async with staged(tmp_path) as scene:
        assert [command for command, _ in shown()] == [
            "erase --dry-run ada@example.com",
            "export ada@example.com",
            "erase ada@example.com",
        ]
        for command, lines in shown():
            printed = await scene.run(command)
            wanted = [plain(line) for line in lines]
            if wanted[-1] == "...":
                wanted.pop()
                printed = printed[: len(wanted)]
            assert [plain(line) for line in printed] == wanted, command


@pytest.mark.servers
async def test_an_export_is_one_json_object(tmp_path: Path) -> None:
    async with staged(tmp_path) as scene:
        printed = orjson.loads("\n".join(await scene.run("export ADA@example.com")))
        assert [each["event"]["id"] for each in printed["events"]] == ["evt_1002", "evt_1003"]
        assert (printed["unreadable"], printed["mentions"]) == ([], [])


@pytest.mark.servers
async def test_the_commands_can_print_json(tmp_path: Path) -> None:
    async with staged(tmp_path) as scene:
        found = orjson.loads("\n".join(await scene.run("erase --json ada@example.com")))
        assert (found["events"], found["dead"], found["wiped"]) == (2, 1, True)


@pytest.mark.servers
@pytest.mark.parametrize("wrong", ["ada", "@example.com", "ada@"])
async def test_the_commands_refuse_an_invalid_address(tmp_path: Path, wrong: str) -> None:
    for command in ("erase", "export"):
        (*_, line) = await Scene(tmp_path).run(f"{command} {wrong}")
        assert "expected an e-mail address such as ann@example.com" in line


async def test_a_delayed_erasure_still_empties_the_prefetch_buffers_and_ends_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, destination: StubServer
) -> None:
    monkeypatch.setattr(eraser, "WAIT_S", 0.5)

    async def fail(_: object) -> None:
        raise StoreFull("the disk is full")

    slow = _SINK.format(name="slow", url=destination.url("/"), more="rate = '4/s'")
    loaded = service.read(tmp_path, tables=ADMIN + slow)
    async with service.serving(loaded) as relay, operating(relay) as operator:
        await relay.service.supervisor.pause("slow")
        await send(relay, *(body(f"ann{number}", email=ANN) for number in range(30)))
        await send(relay, body("bob", email="bob@example.com"))
        await relay.service.supervisor.resume("slow")  # so that all of them are leased at once
        await until(lambda: bool(destination.requests), what="the first of them")
        with monkeypatch.context() as patch:
            patch.setattr(PersonalDataRemoval, "leases_made", fail)
            erasure = await operator.post("/people/erase", {"email": ANN})
            assert (erasure["events"], erasure["ended_ms"]) == (30, None)
            assert "goes on by itself" in erasure["remains"]
            assert relay.lines("erasure.delayed")
            begun = len(destination.requests)
            await until(lambda: b"bob" in destination.requests[-1].body, what="what is not erased")
            assert len(destination.requests) <= begun + 2
        async with asyncio.timeout(30):
            while erasure["ended_ms"] is None:
                erasure = await operator.get(f"/people/erasures/{erasure['id']}")
        assert (erasure["events"], erasure["share"]) == (30, 1.0)
