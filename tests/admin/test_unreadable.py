"""Unreadable requests are listed, shown and discarded by an operator."""

import base64
import contextlib
import hashlib
import time
from pathlib import Path
from typing import Any

import pytest

from relay.core.event import Unreadable
from relay.store.sqlite.driver import sqlite3
from tests import service
from tests.admin.test_api import body, send, working
from tests.admin.test_personal_data import Sender
from tests.caller import post
from tests.cli.scene import Scene
from tests.guarantees import process
from tests.operator import ADMIN, Operator, operating
from tests.service import Relay
from tests.stub_server import StubServer, until

LONG_AGO_MS = time.time_ns() // 1_000_000 - 86_400_000
ARRAY, WORDS, RAW = b"[]", b'"words"', b"\xff\x1b[2J"


async def kept(relay: Relay, *bodies: bytes) -> None:
    for each in bodies:
        assert (await relay.ask(post(each))).status == 200


def digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


async def test_an_unreadable_request_is_shown_by_its_id(relay: Relay, operator: Operator) -> None:
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


async def test_discarding_one_keeps_the_others(relay: Relay, operator: Operator) -> None:
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


async def keep(
    relay: Relay, body: bytes, *, source: str = "main", received_ms: int = LONG_AGO_MS
) -> str:
    """Keep a request as a relay has done that could not read it; return its id."""
    request = Unreadable(
        source=source, received_ms=received_ms, body=body, headers=b"a: b\r\n", reason="not JSON"
    )
    await relay.service._store.keep(request, lambda _: None)
    return request.short_id


async def test_a_retry_accepts_what_can_be_read_by_now_as_of_its_receipt(tmp_path: Path) -> None:
    async with StubServer() as destination, working(tmp_path, destination) as (relay, operator):
        await send(relay, body("known"), body("other"))
        await keep(relay, body("new"))
        await keep(relay, body("known"))
        await keep(relay, body("other", name="changed"))
        await kept(relay, ARRAY)
        result = await operator.post("/unreadable/retry", {"all": True})
        assert result == {
            "accepted": 1,
            "duplicates": 1,
            "conflicts": 1,
            "unreadable": 1,
            "lost": 0,
        }
        left = (await operator.get("/unreadable"))["unreadable"]
        assert {each["reason"] for each in left} == {"not JSON", "the body is not a JSON object"}
        (event,) = (await operator.get("/events", id="new"))["events"]
        assert event["received_ms"] == LONG_AGO_MS
        await until(
            lambda: [b"new" in each.body for each in destination.requests].count(True) == 2,
            what="the event at both sinks",
        )
        again = await operator.post("/unreadable/retry", {"all": True})
        assert again == {**result, "accepted": 0, "duplicates": 0}
        (change, *_) = (await operator.get("/audit"))["changes"][-1:]
        assert change["operation"] == "retry_unreadable_requests"
        assert change["result"]["accepted"] == 1
        assert "new" not in str(change)


async def test_one_request_is_retried_by_its_id(relay: Relay, operator: Operator) -> None:
    wanted, other = await keep(relay, body("a")), await keep(relay, body("b"))
    assert (await operator.post(f"/unreadable/{wanted}/retry"))["accepted"] == 1
    (left,) = (await operator.get("/unreadable"))["unreadable"]
    assert left["id"].startswith(other)
    await operator.post(f"/unreadable/{wanted}/retry", status=404)


async def test_a_request_that_has_lost_its_body_stays(relay: Relay, operator: Operator) -> None:
    await keep(relay, body("gone"))
    await keep(relay, body("damaged"))
    with contextlib.closing(sqlite3.connect(relay.service._store.location)) as db:
        db.execute("UPDATE unreadable SET body = NULL WHERE instr(body, 'gone')")
        db.execute("UPDATE unreadable SET body = x'7b7d' WHERE body NOT NULL")
        db.commit()
    assert (await operator.post("/unreadable/retry", {"all": True}))["lost"] == 2
    assert len((await operator.get("/unreadable"))["unreadable"]) == 2
    assert (await operator.get("/events"))["events"] == []


async def test_requests_are_selected_by_source_reason_and_time(tmp_path: Path) -> None:
    settings = service.read(tmp_path, tables=ADMIN + OTHER)
    async with service.serving(settings) as relay, operating(relay) as operator:
        old = await keep(relay, b"{")
        await kept(relay, ARRAY)
        assert (await relay.ask(post(WORDS, target="/other"))).status == 200

        async def ids(**chosen: Any) -> list[str]:
            listed = (await operator.get("/unreadable", **chosen))["unreadable"]
            reasons = (await operator.get("/unreadable/reasons", **chosen))["reasons"]
            assert sum(each["count"] for each in reasons) == len(listed)
            return [each["id"][:12] for each in listed]

        assert await ids(source="other") == [digest(WORDS)[:12]]
        assert await ids(reason="not JSON") == [old]
        assert await ids(until_ms=LONG_AGO_MS + 1) == [old]
        assert await ids(since_ms=LONG_AGO_MS + 1, source="main") == [digest(ARRAY)[:12]]
        assert "othr" in (await operator.get("/unreadable", source="othr", status=404))["detail"]
        for change in ("retry", "discard"):
            await operator.post(f"/unreadable/{change}", {}, status=422)
        counted = await operator.post("/unreadable/discard", {"source": "main", "dry_run": True})
        assert counted["discarded"] == 0
        assert sum(each["count"] for each in counted["reasons"]) == 2
        assert (await operator.post("/unreadable/discard", {"source": "main"}))["discarded"] == 2
        assert await ids() == [digest(WORDS)[:12]]
        assert (await operator.post("/unreadable/discard", {"all": True}))["discarded"] == 1
        assert await ids() == []


@pytest.mark.parametrize("wrong", ["xyzw", "%25%25%25%25", "ABCD", "0" * 65])
async def test_an_id_is_hex_digits(wrong: str, operator: Operator) -> None:
    await operator.get(f"/unreadable/{wrong}", status=404)


async def test_the_beginning_of_an_id_has_four_digits(operator: Operator) -> None:
    assert "id" in (await operator.get("/unreadable/abc", status=400))["detail"]


@pytest.mark.servers
async def test_the_commands_escape_terminal_control_characters(tmp_path: Path) -> None:
    text = "{\r\n\x1b]0;owned\x07 \u009b31m \u202eevil\u2028".encode() + b"\xff"
    async with process.Relay(tmp_path, sinks="", rest=ADMIN) as relay:
        await relay.start()
        await Sender(relay).send(text)
        scene = Scene(tmp_path)
        (head, row) = await scene.run("unreadable list")
        assert head.split() == ["RECEIVED", "SOURCE", "ID", "BYTES", "REASON"]
        assert digest(text)[:12] in row
        shown = await scene.run(f"unreadable show {digest(text)[:12].upper()}")
        assert all(line.isprintable() for line in shown)
        at = shown.index("body")
        assert shown[at + 1 :] == [
            "  {",
            r"  \x1b]0;owned\x07 \x9b31m \u202eevil\u2028\xff",
        ]
        (said,) = await scene.run(f"unreadable discard {digest(text)}")
        assert said == f"{digest(text)[:12]} of main is removed."
        assert await scene.run("unreadable list") == ["No unreadable requests."]
        assert await scene.run("unreadable retry --all") == [
            "Nothing to retry: no unreadable request matches."
        ]
        await Sender(relay).send(ARRAY)
        assert await scene.run("unreadable list --reason nothing") == ["No unreadable requests."]
        for chosen in (digest(ARRAY)[:8], "--reason JSON", "--all", "--source main --since 1h"):
            assert await scene.run(f"unreadable retry {chosen}") == [
                "1 kept: still no usable event."
            ]
        counted = await scene.run("unreadable discard --all --dry-run")
        assert counted[-1] == "1 in all; repeat without --dry-run to discard them."
        assert await scene.run("unreadable discard --until 1h") == ["0 discarded."]
        assert await scene.run("unreadable discard --source main") == ["1 discarded."]
        for wrong in (
            "retry",
            "discard",
            f"retry {digest(ARRAY)} --all",
            "discard abcd --reason x",
        ):
            assert (await scene.invoke(f"unreadable {wrong}")).exit_code == 2, wrong
        (*_, wrong) = await scene.run("unreadable show nothing")
        assert "expected 4 to 64 hex digits" in wrong
