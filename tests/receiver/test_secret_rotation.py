"""Another secret comes into use on a running relay, and nothing that was signed with it is lost."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from relay import config
from relay.core.errors import StoreFull
from relay.receiver import secret_rotation
from relay.store.quarantine import Quarantine
from relay.store.sqlite.quarantine import SqliteQuarantine
from tests import service
from tests.app.reloading import body, document, ids, party, sink
from tests.caller import SECRET, Answer, post, signed
from tests.operator import ADMIN, Operator, operating
from tests.service import OTHER_SECRET, Relay, ShiftedClock
from tests.stub_server import StubServer, until

SECRETS = 'secrets = ["env:RELAY_SECRET", {{ secret = "env:OTHER_SECRET", label = "old"{} }}]'


def two_secrets(folder: Path, more: str = "") -> None:
    """Edit the config so that its source has a plain secret, and one that is labelled."""
    file = folder / "config.toml"
    text = file.read_text(encoding="utf-8")
    plain = 'secrets = ["env:RELAY_SECRET"]'
    assert plain in text
    file.write_text(text.replace(plain, SECRETS.format(more)), encoding="utf-8")


async def send(relay: Relay, event_id: str, secret: str) -> int:
    content = body(event_id)
    header = ("Service-Signature", signed(content, secret=secret))
    return (await relay.ask(post(content, header, sign=False))).status


async def test_a_metric_says_which_secret_verified(tmp_path: Path) -> None:
    async with party(tmp_path) as there:
        assert 'relay_signatures_total{secret="1",source="main"} 0.0' in (
            await there.relay.metrics()
        )
        there.write()
        two_secrets(tmp_path)
        assert (await there.operator.client.post("/-/reload")).status_code == 200
        for event_id, secret in (("a", SECRET), ("b", OTHER_SECRET), ("c", OTHER_SECRET)):
            assert await send(there.relay, event_id, secret) == 202
        counted = await there.relay.counts("relay_signatures_total")
        assert counted == {("1", "main"): 1, ("old", "main"): 2}
        await there.reload()
        assert 'secret="old"' not in await there.relay.metrics()


async def test_an_ended_secret_is_refused_and_warned_of_by_its_label(tmp_path: Path) -> None:
    async with party(tmp_path) as there:
        there.write(admin=ADMIN)
        two_secrets(tmp_path, ", until = 2026-03-02")
        assert (await there.operator.client.post("/-/reload")).status_code == 200
        assert await send(there.relay, "a", OTHER_SECRET) == 401
        assert await send(there.relay, "b", SECRET) == 202
        (line,) = there.relay.lines("config.warning")
        assert line["key"] == "source.main.secrets"
        assert line["reason"].startswith("old has reached its `until`")
        assert OTHER_SECRET not in there.relay.log


OTHER = '[[source]]\nname = "other"\npath = "/other"\nsecrets = [{}]\n'
NEW = "the-secret-that-comes-later"
URL = "/sources/other/rotation"


@dataclass
class Change:
    """A relay with a source `other`, its secret in a file, and a sink at `destination`."""

    folder: Path
    relay: Relay
    operator: Operator
    destination: StubServer
    clock: ShiftedClock

    async def begin(self, minutes: int = 15) -> Any:
        return await self.operator.post(URL, {"duration_ms": minutes * 60_000})

    async def finish(self) -> Any:
        return await self.operator.post(f"{URL}/finish")

    async def state(self) -> Any:
        return await self.operator.get(URL)

    def bring(self, secret: str = NEW) -> None:
        (self.folder / "secret").write_text(secret)

    async def send(
        self, event_id: str = "a", *, secret: str = NEW, at_s: int = 0, content: bytes = b""
    ) -> Answer:
        """Send an event, signed `at_s` later than the relay's time."""
        content = content or body(event_id)
        signed_s = self.clock.now_ms() // 1000 + at_s
        header = ("Service-Signature", signed(content, secret=secret, at_s=signed_s))
        return await self.relay.ask(post(content, header, target="/other", sign=False))

    def delivered(self) -> list[str]:
        return sorted(ids(self.destination))


@contextlib.asynccontextmanager
async def changing(
    folder: Path, destination: StubServer, *, server: str = ""
) -> AsyncIterator[Change]:
    if not (folder / "secret").exists():
        (folder / "secret").write_text("the-secret-that-was-before")
    reference = f'"file:{folder}/secret"'
    tables = (OTHER.format(reference), sink("crm", destination.url()))
    (folder / "config.toml").write_text(document(folder, *tables, server=server))
    settings = config.load(folder / "config.toml", service.ENVIRON)
    clock = ShiftedClock()
    async with (
        service.serving(settings, clock=clock) as relay,
        operating(relay) as operator,
    ):
        yield Change(folder, relay, operator, destination, clock)


@pytest.fixture
async def change(
    tmp_path: Path, destination: StubServer, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Change]:
    monkeypatch.setattr(secret_rotation, "POLL_INTERVAL_S", 0.05)
    async with changing(tmp_path, destination) as change:
        yield change


async def test_without_a_rotation_a_bad_signature_does_not_touch_the_store(
    change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> Any:
        raise AssertionError("the store was asked")

    for name in Quarantine.__dict__:
        # The relay looks for new rotations all the time.
        if not name.startswith("_") and name != "rotations":
            monkeypatch.setattr(SqliteQuarantine, name, refuse)
    assert (await change.send()).status == 401
    monkeypatch.undo()
    assert change.relay.stored("quarantine") == 0
    assert change.relay.lines("receiver.bug") == []
    assert (await change.state())["state"] == "none"


async def test_a_request_that_matches_no_secret_is_refused_as_usual_and_kept(
    change: Change,
) -> None:
    before = await change.send()
    await change.begin()
    while_armed = await change.send()
    assert (while_armed.status, while_armed.body) == (401, before.body)
    assert {**while_armed.headers, "date": ""} == {**before.headers, "date": ""}
    state = await change.state()
    assert (state["state"], state["kept"], state["waiting"]) == ("armed", 1, 1)
    assert state["bytes"] > len(body("a"))
    assert (change.relay.stored("quarantine"), change.relay.stored()) == (1, 0)
    assert await change.relay.counts("relay_quarantined_requests") == {("other",): 1}
    rejected = await change.relay.counts("relay_rejected_total")
    assert rejected == {("mismatch", "other"): 2}


async def test_only_what_could_be_verified_later_is_kept(change: Change) -> None:
    await change.begin()
    for at_s in (-302, 302):
        assert (await change.send(at_s=at_s)).status == 401
    content = body("a")
    for header in ([], [("Service-Signature", "t=1")], [("Service-Signature", "nothing")]):
        asked = post(content, *header, target="/other", sign=False)
        assert (await change.relay.ask(asked)).status == 401
    large = await change.send(content=body("x" * (2 << 20)))
    assert large.status == 413
    # Another source is not armed.
    assert (
        await change.relay.ask(
            post(content, ("Service-Signature", signed(content, secret=NEW)), sign=False)
        )
    ).status == 401
    assert change.relay.stored("quarantine") == 0
    assert (await change.state())["kept"] == 0


async def test_quarantined_requests_become_events_once_the_rotation_is_finished(
    change: Change,
) -> None:
    await change.begin()
    for event_id in ("a", "b", "a", "c"):
        await change.send(event_id)
    await change.send("forged", secret="a-secret-of-somebody-else")
    change.bring()
    finished = await change.finish()
    assert (finished["kept"], finished["verified"], finished["duplicates"]) == (5, 4, 1)
    assert (finished["waiting"], finished["state"]) == (1, "over")
    await until(lambda: change.delivered() == ["a", "b", "c"], what="the deliveries")
    counted = await change.relay.counts("relay_events_total")
    assert counted == {
        ("lead.captured", "accepted", "other"): 3,
        ("lead.captured", "duplicate", "other"): 1,
    }
    assert await change.relay.counts("relay_leads_captured_total") == {("other",): 3}
    assert await change.relay.counts("relay_signatures_total") == {("1", "other"): 4}
    assert await change.relay.counts("relay_quarantined_requests") == {("other",): 1}
    # The sender tries again what it was refused.
    assert (await change.send("b")).content["status"] == "duplicate"
    assert change.delivered() == ["a", "b", "c"]


async def test_an_event_that_the_sender_repeated_meanwhile_is_delivered_once(
    change: Change,
) -> None:
    await change.begin()
    await change.send("a")
    change.bring()
    async with asyncio.timeout(10):
        while (await change.send("a")).status == 401:
            await asyncio.sleep(0.1)
    finished = await change.finish()
    assert finished["verified"] == finished["kept"] >= 1
    assert finished["waiting"] == 0
    await until(lambda: change.delivered() == ["a"], what="the delivery")
    await change.send("b")
    await until(lambda: change.delivered() == ["a", "b"], what="the next delivery")


async def test_a_changed_file_alone_brings_back_what_was_kept(change: Change) -> None:
    await change.begin()
    await change.send("a")
    change.bring()
    await until(lambda: bool(change.relay.lines("rotation.verified")), what="the line of it")
    await until(lambda: change.delivered() == ["a"], what="the delivery")
    state = await change.state()
    assert (state["state"], state["verified"], state["waiting"]) == ("armed", 1, 0)


async def test_a_secret_in_a_reloaded_config_brings_back_what_was_kept(change: Change) -> None:
    await change.begin()
    await change.send("a", secret=OTHER_SECRET)
    file = change.folder / "config.toml"
    file.write_text(file.read_text().replace('["file:', '["env:OTHER_SECRET", "file:'))
    assert (await change.operator.client.post("/-/reload")).status_code == 200
    await until(lambda: change.delivered() == ["a"], what="the delivery")


async def test_a_quarantined_request_is_verified_as_of_its_receipt(change: Change) -> None:
    await change.begin()
    await change.send("a")
    await change.send("b", at_s=-290)
    change.clock.shift_s += 14 * 60
    change.bring()
    finished = await change.finish()
    assert (finished["verified"], finished["waiting"]) == (2, 0)
    await until(lambda: change.delivered() == ["a", "b"], what="the deliveries")
    assert (await change.send("c", at_s=-14 * 60)).status == 401


async def test_a_wrong_secret_leaves_what_waits_for_the_right_one(change: Change) -> None:
    await change.begin()
    await change.send("a")
    change.bring("a-secret-that-was-mistyped")
    finished = await change.finish()
    assert (finished["verified"], finished["waiting"], finished["state"]) == (0, 1, "over")
    await change.send("b")
    assert (await change.state())["kept"] == 1
    change.bring()
    finished = await change.finish()
    assert (finished["verified"], finished["waiting"]) == (1, 0)


async def test_a_faulty_config_finishes_nothing(change: Change) -> None:
    await change.begin()
    await change.send("a")
    change.bring("")
    problem = await change.operator.post(f"{URL}/finish", status=422)
    assert problem["faults"][0]["path"] == "source[1] (other).secrets[0]"
    assert (await change.state())["state"] == "armed"
    await change.send("b")
    assert (await change.state())["kept"] == 2


async def test_a_rotation_expires_and_its_quarantined_requests_with_it(change: Change) -> None:
    begun = await change.begin(15)
    await change.send("a")
    change.clock.shift_s += 15 * 60
    await change.send("b")
    state = await change.state()
    assert (state["state"], state["kept"], state["waiting"]) == ("over", 1, 1)
    assert begun["expires_ms"] - begun["until_ms"] == 680_000
    change.clock.shift_s += 679
    await asyncio.sleep(0.2)
    assert (await change.state())["waiting"] == 1
    change.clock.shift_s += 1
    await until(lambda: change.relay.stored("quarantine") == 0, what="the expiry")
    await until(lambda: bool(change.relay.lines("rotation.expired")), what="its line")
    assert await change.state() == UNBEGUN
    assert await change.relay.counts("relay_quarantined_requests") == {}
    await change.operator.post(f"{URL}/finish", status=409)


UNBEGUN = {
    **dict.fromkeys(("begun_ms", "until_ms", "expires_ms")),
    **dict.fromkeys(("kept", "verified", "duplicates", "waiting", "bytes", "dropped"), 0),
    "source": "other",
    "state": "none",
}


@pytest.mark.parametrize(
    ("limit", "value", "reason"),
    [("COUNT_MAX", 2, "count"), ("BYTES_MAX", 600, "bytes"), ("RATE_MAX", 2, "rate")],
)
async def test_over_a_limit_requests_are_dropped_and_counted(
    change: Change, monkeypatch: pytest.MonkeyPatch, limit: str, value: int, reason: str
) -> None:
    monkeypatch.setattr(secret_rotation, limit, value)
    await change.begin()
    now_s = change.clock.monotonic()
    monkeypatch.setattr(change.clock, "monotonic", lambda: now_s)
    for number in range(6):
        assert (await change.send(f"{number}")).status == 401
    state = await change.state()
    assert state["waiting"] == state["kept"] == 2
    assert state["dropped"] == 4
    assert await change.relay.counts("relay_quarantine_dropped_total") == {(reason, "other"): 4}


async def test_a_store_that_takes_nothing_changes_no_answer(
    change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: object) -> None:
        raise StoreFull("no room")

    await change.begin()
    monkeypatch.setattr(SqliteQuarantine, "keep", full)
    assert (await change.send("a")).status == 401
    assert await change.relay.counts("relay_quarantine_dropped_total") == {("store", "other"): 1}


async def test_a_restart_goes_on_with_a_rotation(tmp_path: Path, destination: StubServer) -> None:
    async with changing(tmp_path, destination) as change:
        await change.begin()
        await change.send("a")
    async with changing(tmp_path, destination) as change:
        assert await change.relay.counts("relay_quarantined_requests") == {("other",): 1}
        await change.send("b")
        assert (await change.state())["kept"] == 2
    (tmp_path / "secret").write_text(NEW)
    async with changing(tmp_path, destination) as change:
        await until(lambda: change.delivered() == ["a", "b"], what="the deliveries")
        await until(lambda: change.relay.stored("quarantine") == 0, what="an empty quarantine")


async def test_an_impossible_request_of_a_rotation_is_refused_with_the_reason(
    change: Change,
) -> None:
    absent = "/sources/nobody/rotation"
    await change.operator.get(absent, status=404)
    await change.operator.post(absent, {"duration_ms": 60_000}, status=404)
    await change.operator.post(f"{absent}/finish", status=404)
    await change.operator.post(f"{URL}/finish", status=409)
    for wrong in (0, 999, 3_600_001, "15m"):
        problem = await change.operator.post(URL, {"duration_ms": wrong}, status=400)
        assert "duration_ms" in problem["detail"]


async def test_nothing_secret_or_personal_is_logged(change: Change) -> None:
    await change.begin()
    content = body("a").replace(b"{}", b'{"email":"ada@example.com"}')
    await change.send(content=content)
    change.bring()
    await change.finish()
    await until(lambda: change.delivered() == ["a"], what="the delivery")
    assert change.relay.lines("rotation.begun")
    assert change.relay.lines("rotation.verified")[0]["count"] == 1
    assert change.relay.lines("rotation.finished")
    assert "ada@" not in change.relay.log
    assert NEW not in change.relay.log
