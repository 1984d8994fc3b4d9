"""Every change by an operator leaves a row and a log line, both without e-mail addresses."""

import asyncio
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from relay.admin.api import OPERATIONS
from relay.admin.audit import Auditor
from relay.app import reload
from relay.core.clock import Clock
from relay.core.errors import StoreFull
from relay.store.audit import Change
from relay.telemetry.activity_stream import ActivityStream
from tests.admin.test_api import body, send, working
from tests.admin.test_personal_data import in_files
from tests.app.reloading import party
from tests.cli.scene import Scene
from tests.guarantees import process
from tests.operator import ADMIN, Operator
from tests.service import Relay
from tests.store.places import opened
from tests.stub_server import Reply, StubServer, until

ANN = "ann.secret@example.com"
READS = {"count_replay", "count_person", "test_sink"}


async def changes(operator: Operator, **query: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await operator.get("/audit", **query))["changes"]
    return found


def test_every_operation_but_reads_is_audited() -> None:
    assert {each.name for each in OPERATIONS if each.audited is False} == READS
    assert all(each.method in ("GET", "POST") for each in OPERATIONS)


async def test_a_change_leaves_a_row_and_a_log_line_with_request_and_result(
    destination: StubServer, relay: Relay, operator: Operator
) -> None:
    destination.reply = lambda _: Reply(422)
    await send(relay, body("a"), body("b"))
    await relay.until_counted("relay_deliveries_total", "dead", "leads", value=2)
    await operator.get("/sinks")
    await operator.post("/replays/count", {"sink": "leads"})
    await operator.post("/sinks/leads/test")
    assert await changes(operator) == []
    operator.client.headers["user-agent"] = "crontab/7"
    await operator.post("/sinks/leads/pause")
    await operator.post("/dead-letters/discard", {"sink": "leads", "reason": "422"})
    discarded, paused = await changes(operator)
    assert (paused["operation"], paused["target"], paused["asked"]) == (
        "pause_sink",
        "leads",
        {},
    )
    assert (paused["actor"], paused["address"], paused["via"]) == (
        "admin",
        "127.0.0.1",
        "crontab/7",
    )
    assert discarded["asked"] == {"sink": "leads", "reason": "422"}
    assert (discarded["status"], discarded["result"]) == (200, {"discarded": 2})
    assert discarded["begun_ms"] <= discarded["ended_ms"]
    _, line = relay.lines("change.done")
    assert (line["operation"], line["asked"], line["counts"], line["code"]) == (
        "discard_dead_letters",
        "sink=leads reason=422",
        "discarded=2",
        200,
    )


async def test_a_refused_change_is_recorded_with_its_status(tmp_path: Path) -> None:
    async with StubServer() as destination, working(tmp_path, destination) as (relay, operator):
        await operator.post("/sinks/nobody/pause", status=404)
        await operator.post("/sources/main/rotation/finish", status=409)
        (tmp_path / "config.toml").write_text("[", encoding="utf-8")
        assert (await operator.client.post("/-/reload")).status_code == 422
        assert [each["status"] for each in await changes(operator)] == [422, 409, 404]
        targets = [line.get("target") for line in relay.lines("change.refused")]
        assert targets == ["nobody", "main", None]


async def test_only_the_digest_of_an_address_is_kept(
    tmp_path: Path, relay: Relay, operator: Operator
) -> None:
    operator.client.headers["user-agent"] = f"curl ({ANN})"
    await operator.post(
        "/replays",
        {"reason": f"said <{ANN}>", "sink": ANN.upper(), "words": f"is {ANN}"},
        status=404,
    )
    await operator.post("/people/export", {"email": ANN})
    await operator.post("/people/erase", {"email": ANN.upper()})
    await operator.post(f"/sinks/{ANN.replace('@', '%2540')}/pause", status=404)
    await operator.post("/people/erase", {"email": "bob@example.com"})
    bob, path, erased, exported, replayed = await changes(operator)
    digest = exported["asked"]["email"]
    assert digest.startswith("person:")
    assert erased["asked"] == {"email": digest}
    assert replayed["asked"] == {
        "reason": f"said <{digest}>",
        "sink": digest,
        "words": f"is {digest}",
    }
    assert replayed["via"] == f"curl ({digest})"
    assert bob["asked"]["email"] != digest
    assert path["target"].startswith("person:")
    (_, record) = (await operator.get("/people/erasures"))["erasures"]
    assert record["person"].startswith(digest.removeprefix("person:"))
    for text in (ANN, ANN.partition("@")[0]):
        assert in_files(tmp_path, text) == []
        assert text not in relay.log.lower()


async def test_a_long_word_takes_no_time_to_record(tmp_path: Path, clock: Clock) -> None:
    change = Change(operation="erase_person", target="x" * 1_000_000)
    async with opened(tmp_path / "relay.db", clock) as store:
        before_s = time.process_time()
        assert store.audit.pseudonymized(change).target == "x" * 500
        assert time.process_time() - before_s < 1


async def test_an_address_within_lists_and_objects_is_a_digest_too(
    tmp_path: Path, clock: Clock
) -> None:
    async with opened(tmp_path / "relay.db", clock) as store:
        asked = {"email": ANN, "all": [f"of {ANN}", {"email": ANN}, 1]}
        pseudonymized = store.audit.pseudonymized(
            Change(operation="begin_replay", asked=asked)
        ).asked
    digest = pseudonymized["email"]
    assert digest.startswith("person:")
    assert pseudonymized["all"] == [f"of {digest}", {"email": digest}, 1]


async def test_two_stores_know_a_person_by_different_digests(tmp_path: Path, clock: Clock) -> None:
    change = Change(operation="erase_person", asked={"email": ANN})
    digests = set()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        async with opened(tmp_path / name / "relay.db", clock) as store:
            digests.add(store.audit.pseudonymized(change).asked["email"])
    assert len(digests) == 2


async def test_an_interrupted_change_leaves_an_unfinished_row(tmp_path: Path, clock: Clock) -> None:
    begun, never = asyncio.Event(), asyncio.Event()

    async with opened(tmp_path / "relay.db", clock) as store:
        auditor = Auditor(audit=store.audit, activity=ActivityStream(clock), clock=clock)

        async def change() -> None:
            async with auditor.recorded(Change(operation="erase_person")):
                begun.set()
                await never.wait()

        task = asyncio.create_task(change())
        await begun.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        (record,) = await store.audit.newest(limit=9)
        assert (record.operation, record.ended_ms, record.status) == ("erase_person", None, None)


async def test_a_change_is_made_even_if_it_cannot_be_recorded(
    monkeypatch: pytest.MonkeyPatch, relay: Relay, operator: Operator
) -> None:
    async def full(*_: object, **__: object) -> int:
        raise StoreFull("the disk is full")

    await send(relay, body("a", email=ANN))
    monkeypatch.setattr(relay.service._store.audit, "begin", full)
    erased = await operator.post("/people/erase", {"email": ANN})
    assert erased["events"] == 1
    (line,) = relay.lines("audit.failed")
    assert (line["operation"], line["level"]) == ("erase_person", "error")
    assert len(relay.lines("change.done")) == 1


async def test_a_backup_is_recorded_although_it_changes_nothing(operator: Operator) -> None:
    assert (await operator.client.get("/api/v1/store/backup")).status_code == 200
    (change,) = await changes(operator)
    assert (change["operation"], change["status"]) == ("backup_store", 200)


async def test_a_reload_by_a_changed_file_is_recorded_with_what_it_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reload, "POLL_INTERVAL_S", 0.05)
    secret = tmp_path / "secret"
    secret.write_text("the-secret-of-another-source")
    other = f'[[source]]\nname = "other"\npath = "/other"\nsecrets = ["file:{secret}"]\n'
    async with party(tmp_path, other) as there:
        secret.write_text("the-new-secret-of-that-source")
        await until(lambda: bool(there.relay.lines("change.done")), what="the reload")
        (change,) = await changes(there.operator)
        assert (change["operation"], change["via"]) == ("reload_config", "a file changed")
        assert (change["actor"], change["address"]) == (None, None)
        assert change["result"]["changed"] == ["source.other"]


@pytest.mark.servers
async def test_a_reload_by_a_signal_is_recorded_and_listed_by_the_command(tmp_path: Path) -> None:
    async with process.Relay(tmp_path, sinks="", rest=ADMIN) as relay:
        await relay.start()
        relay.signal(signal.SIGHUP)
        await process.until(lambda: bool(relay.lines("change.done")), what="the reload")
        scene = Scene(tmp_path)
        await scene.run("reload")
        head, latest, first = await scene.run("audit list")
        assert head.split()[:3] == ["ID", "WHEN", "OPERATION"]
        assert latest.endswith("(command line)")
        assert "reload_config" in first
        assert first.split()[-4:] == ["done", "-", "-", "SIGHUP"]
        (_, row, more) = await scene.run("audit list --limit 1")
        assert row == latest
        assert more == "Next page: relay audit list --limit 1 --before 2"
        (_, row) = await scene.run("audit list --before 2 --since 1h")
        assert row.split()[0] == "1"
        assert await scene.run("audit list --since 2099-01-01") == ["No changes."]


async def test_changes_are_selected_by_operation_and_time(tmp_path: Path, clock: Clock) -> None:
    async with opened(tmp_path / "relay.db", clock) as store:
        for at_ms, operation in enumerate(("pause_sink", "resume_sink", "pause_sink"), 1):
            await store.audit.begin(Change(operation=operation), now_ms=at_ms)

        async def ids(**chosen: Any) -> list[int]:
            return [each.id for each in await store.audit.newest(limit=9, **chosen)]

        assert await ids() == [3, 2, 1]
        assert await ids(operation="pause_sink") == [3, 1]
        assert await ids(since_ms=2, until_ms=3) == [2]
        assert await ids(before=3, operation="pause_sink") == [1]
        assert await ids(operation="nothing") == []
