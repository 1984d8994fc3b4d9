"""Unreadable requests are listed, shown and discarded by an operator."""

import base64
import hashlib
from pathlib import Path

import pytest

from tests import service
from tests.admin.test_api import working
from tests.admin.test_personal_data import Sender
from tests.caller import post
from tests.cli.scene import Scene
from tests.guarantees import process
from tests.operator import ADMIN, operating
from tests.service import Relay
from tests.stub_server import StubServer

ARRAY, WORDS, RAW = b"[]", b'"words"', b"\xff\x1b[2J"


async def kept(relay: Relay, *bodies: bytes) -> None:
    for each in bodies:
        assert (await relay.ask(post(each))).status == 200


def digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


async def test_an_unreadable_request_is_shown_by_its_id(tmp_path: Path) -> None:
    async with StubServer() as destination, working(tmp_path, destination) as (relay, operator):
        await kept(relay, ARRAY, RAW)
        listed = (await operator.get("/unreadable"))["unreadable"]
        assert [each["id"] for each in listed] == [digest(RAW), digest(ARRAY)]
        shown = await operator.get(f"/unreadable/{digest(RAW)[:8]}")
        assert shown["request"] == listed[0]
        assert base64.b64decode(shown["body_base64"]) == RAW
        assert shown["body"] == "\\xff\x1b[2J"
        assert "service-signature" in shown["headers"]
        (line, _) = relay.lines("event.unreadable")
        assert line["id"] == digest(ARRAY)[:12]


async def test_pages_of_unreadable_requests_follow_one_another(tmp_path: Path) -> None:
    async with StubServer() as destination, working(tmp_path, destination) as (relay, operator):
        await kept(relay, *(str(number).encode() for number in range(5)))
        seen: list[str] = []
        before: dict[str, int] = {}
        while True:
            page = await operator.get("/unreadable", limit=2, **before)
            seen += [each["id"] for each in page["unreadable"]]
            if page["next"] is None:
                break
            before = {"before": page["next"]}
        assert seen == [digest(str(number).encode()) for number in reversed(range(5))]


async def test_discarding_one_keeps_the_others(tmp_path: Path) -> None:
    async with StubServer() as destination, working(tmp_path, destination) as (relay, operator):
        await kept(relay, ARRAY, WORDS)
        removed = await operator.post(f"/unreadable/{digest(ARRAY)[:12]}/discard")
        assert removed["id"] == digest(ARRAY)
        (left,) = (await operator.get("/unreadable"))["unreadable"]
        assert left["id"] == digest(WORDS)
        await operator.post(f"/unreadable/{digest(ARRAY)}/discard", status=404)
        (change, *_) = (await operator.get("/audit"))["changes"][-1:]
        assert (change["operation"], change["target"]) == (
            "discard_unreadable",
            digest(ARRAY)[:12],
        )


OTHER = """
[[source]]
name = "other"
path = "/other"
secrets = ["env:RELAY_SECRET"]
"""


async def test_the_source_distinguishes_equal_bodies(tmp_path: Path) -> None:
    settings = service.read(tmp_path, tables=ADMIN + OTHER)
    async with service.serving(settings) as relay, operating(relay) as operator:
        await kept(relay, ARRAY)
        assert (await relay.ask(post(ARRAY, target="/other"))).status == 200
        path = f"/unreadable/{digest(ARRAY)}"
        assert "give more digits, or the source" in (await operator.get(path, status=409))["detail"]
        shown = await operator.get(path, source="other")
        assert shown["request"]["source"] == "other"
        await operator.post(f"{path}/discard?source=main")
        assert (await operator.get(path))["request"]["source"] == "other"


@pytest.mark.parametrize("wrong", ["abc", "xyzw", "%25%25%25%25", "ABCD", "0" * 65])
async def test_an_id_is_hex_digits(tmp_path: Path, wrong: str) -> None:
    async with StubServer() as destination, working(tmp_path, destination) as (_, operator):
        assert "id" in (await operator.get(f"/unreadable/{wrong}", status=400))["detail"]


@pytest.mark.servers
async def test_the_commands_escape_terminal_control_characters(tmp_path: Path) -> None:
    body = "{\r\n\x1b]0;owned\x07 \u009b31m \u202eevil\u2028".encode() + b"\xff"
    async with process.Relay(tmp_path, sinks="", rest=ADMIN) as relay:
        await relay.start()
        await Sender(relay).send(body)
        scene = Scene(tmp_path)
        (head, row) = await scene.run("unreadable list")
        assert head.split() == ["RECEIVED", "SOURCE", "ID", "BYTES", "REASON"]
        assert digest(body)[:12] in row
        shown = await scene.run(f"unreadable show {digest(body)[:12].upper()}")
        assert all(line.isprintable() for line in shown)
        at = shown.index("body")
        assert shown[at + 1 :] == [
            "  {",
            r"  \x1b]0;owned\x07 \x9b31m \u202eevil\u2028\xff",
        ]
        (said,) = await scene.run(f"unreadable discard {digest(body)}")
        assert said == f"{digest(body)[:12]} of main is removed."
        assert await scene.run("unreadable list") == ["No unreadable requests."]
        (*_, wrong) = await scene.run("unreadable show nothing")
        assert "expected 4 to 64 hex digits" in wrong
