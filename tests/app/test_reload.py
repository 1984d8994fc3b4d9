"""A running relay uses a new config as a whole, or refuses it and keeps the old one."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from relay.core.errors import StoreError
from relay.delivery import configured_sink
from relay.sinks.http import sink as http
from relay.store.paused_sinks import PausedSinks
from tests.app.reloading import Party, body, document, ids, party, sink
from tests.caller import Caller, head, post, signed
from tests.operator import ADMIN, TOKEN
from tests.service import OTHER_SECRET
from tests.stub_server import Reply, StubServer, until


@pytest.fixture
async def there(tmp_path: Path, destination: StubServer) -> AsyncIterator[Party]:
    """A relay with a sink `crm` at the destination."""
    async with party(tmp_path, sink("crm", destination.url())) as there:
        yield there


async def test_an_added_sink_starts_and_the_others_keep_their_connections(tmp_path: Path) -> None:
    async with (
        StubServer() as old,
        StubServer() as new,
        party(tmp_path, sink("crm", old.url())) as there,
    ):
        await there.send("a")
        await until(lambda: ids(old) == ["a"], what="the first event")
        changes = await there.reload(sink("crm", old.url()), sink("bi", new.url()))
        assert changes["sinks"] == {"added": ["bi"], "changed": [], "removed": []}
        assert (await there.relay.metrics()).count('relay_deliveries_total{outcome="dead",') == 2
        await there.send("b")
        await until(lambda: ids(new) == ["b"], what="the event at the new sink")
        await until(lambda: ids(old) == ["a", "b"], what="the event at the old one")
        assert old.accepted == 1
        (line,) = there.relay.lines("config.reloaded")
        assert line["added"] == "sink.bi"


async def test_a_mistake_of_a_config_that_could_run_is_logged_and_used(
    destination: StubServer, there: Party
) -> None:
    mistaken = sink("crm", destination.url(), "when = 'event == \"lead.captured\"'\n")
    for _ in range(2):
        await there.reload(mistaken)
    (line,) = there.relay.lines("config.warning")  # once, though it was read twice
    assert line["key"] == "sink[0] (crm).when"
    assert line["reason"].startswith("lead.captured is read as a name")
    assert line["advice"].startswith("the next release refuses this")


async def test_an_unchanged_sink_keeps_its_state_and_its_wait(
    destination: StubServer, there: Party
) -> None:
    destination.reply = lambda _: Reply(404)
    await there.send("a")
    await there.relay.until_counted("relay_sink_state", "crm", "parked")
    await there.reload(sink("crm", destination.url()), sink("bi", destination.url("/bi")))
    crm, bi = (each["condition"] for each in (await there.operator.get("/sinks"))["sinks"])
    assert (crm["state"], crm["last_error"]) == ("parked", "404: nothing is at this URL")
    assert (bi["state"], bi["last_error"]) == ("active", None)


async def test_the_backlog_of_a_removed_sink_is_kept_for_its_return(
    destination: StubServer, there: Party
) -> None:
    destination.reply = lambda _: Reply(404)
    await there.send("a", "b")
    await there.relay.until_counted("relay_sink_state", "crm", "parked")
    changes = await there.reload()
    assert changes["sinks"]["removed"] == ["crm"]
    await until(
        lambda: bool(there.relay.lines("sink.not_configured")), what="the line of the backlog"
    )
    (line,) = there.relay.lines("sink.not_configured")
    assert (line["sink"], line["pending"]) == ("crm", 2)
    assert "relay_sink_state{" not in await there.relay.metrics()
    await there.send("c")
    destination.requests.clear()
    destination.reply = lambda _: Reply()
    await there.reload(sink("crm", destination.url()))
    await until(lambda: sorted(ids(destination)) == ["a", "b"], what="the backlog")
    assert (await there.relay.counts("relay_sink_state"))["crm", "active"] == 1


async def test_a_changed_sink_starts_when_the_sends_of_the_old_one_have_ended(
    tmp_path: Path,
) -> None:
    release = asyncio.Event()
    async with (
        StubServer() as old,
        StubServer() as new,
        party(tmp_path, sink("crm", old.url(), "concurrency = 1")) as there,
    ):
        old.reply = lambda _: None
        answering = asyncio.create_task(_answer_later(old, release))
        await there.send("a", "b")
        await until(lambda: ids(old) == ["a"], what="the send")
        changes = await there.reload(sink("crm", new.url(), "concurrency = 1"))
        assert changes["sinks"]["changed"] == ["crm"]
        await there.send("c")
        # Long enough for a successor that does not wait.
        await asyncio.sleep(0.2)
        assert ids(new) == []
        release.set()
        await answering
        await until(lambda: sorted(ids(new)) == ["a", "b", "c"], what="all that was not taken")
        assert ids(old) == ["a"]
        assert old.open == 0


async def _answer_later(destination: StubServer, release: asyncio.Event) -> None:
    """Close the connection of the running send: it is not confirmed, so it is due again."""
    await release.wait()
    await destination.stop()


async def test_a_send_that_outlasts_the_grace_is_repeated_by_the_successor(
    tmp_path: Path,
) -> None:
    server = 'drain_timeout = "200ms"'
    async with (
        StubServer() as old,
        StubServer() as new,
        party(tmp_path, sink("crm", old.url(), "concurrency = 2"), server=server) as there,
    ):
        old.reply = lambda _: None
        await there.send("a", "b", "c")
        await until(lambda: len(old.requests) == 2, what="two sends that hang")
        await there.reload(sink("crm", new.url()), server=server)
        await until(lambda: sorted(ids(new)) == ["a", "b", "c"], what="all at the new place")
        await there.relay.until_counted("relay_deliveries_total", "delivered", "crm", value=3)


async def test_sinks_changed_again_and_again_while_their_sends_hang_lose_nothing(
    tmp_path: Path,
) -> None:
    server = 'drain_timeout = "300ms"'
    async with (
        StubServer() as hanging,
        StubServer() as well,
        party(tmp_path, sink("crm", hanging.url()), server=server) as there,
    ):
        hanging.reply = lambda _: None
        await there.send("a", "b")
        await until(lambda: len(hanging.requests) == 2, what="the sends")
        for turn in range(4):
            await there.reload(sink("crm", hanging.url(f"/{turn}")), server=server)
            await there.reload(server=server)
        await there.reload(sink("crm", well.url()), server=server)
        await until(lambda: sorted(ids(well)) == ["a", "b"], what="all at the last place")
        await there.relay.until_counted("relay_sink_state", "crm", "active")


async def test_a_relay_stops_in_time_while_a_replaced_sink_still_hangs(tmp_path: Path) -> None:
    server = 'drain_timeout = "500ms"'
    async with StubServer() as hanging, StubServer() as well:
        hanging.reply = lambda _: None
        async with asyncio.timeout(5):
            async with party(tmp_path, sink("crm", hanging.url()), server=server) as there:
                await there.send("a")
                await until(lambda: len(hanging.requests) == 1, what="the send")
                await there.reload(sink("crm", well.url()), server=server)
        async with party(tmp_path, sink("crm", well.url()), server=server):
            await until(lambda: ids(well) == ["a"], what="the event after the restart")


async def test_a_sink_that_gets_other_events_keeps_its_connection(
    destination: StubServer, there: Party
) -> None:
    await there.send("a")
    await until(lambda: ids(destination) == ["a"], what="the first event")
    changes = await there.reload(sink("crm", destination.url(), 'events = ["video.ready"]'))
    assert changes["rerouted"] == ["crm"]
    assert changes["sinks"]["changed"] == []
    await there.send("b")
    assert (await there.relay.ask(post(body("c", "video.ready")))).status == 202
    await until(lambda: ids(destination) == ["a", "c"], what="only what is asked for")
    assert destination.accepted == 1


async def test_a_paused_sink_stays_paused_when_it_changes_or_comes_back(
    destination: StubServer, there: Party
) -> None:
    await there.operator.post("/sinks/crm/pause")
    await there.reload(sink("crm", destination.url("/other")))
    await there.relay.until_counted("relay_sink_state", "crm", "paused")
    await there.send("a")
    await there.reload()
    await there.reload(sink("crm", destination.url("/third")))
    await there.relay.until_counted("relay_sink_state", "crm", "paused")
    assert destination.requests == []
    await there.operator.post("/sinks/crm/resume")
    await until(lambda: ids(destination) == ["a"], what="the event")


async def test_a_sink_that_is_resumed_during_a_reload_is_not_paused_by_it(
    monkeypatch: pytest.MonkeyPatch, destination: StubServer, there: Party
) -> None:
    paused = PausedSinks.all

    async def resumed_meanwhile(sinks: PausedSinks) -> Any:
        found = await paused(sinks)
        await there.operator.post("/sinks/crm/resume")
        return found

    await there.operator.post("/sinks/crm/pause")
    with monkeypatch.context() as patch:
        patch.setattr(PausedSinks, "all", resumed_meanwhile)
        await there.reload(sink("crm", destination.url("/other")))
    await there.send("a")
    await until(lambda: ids(destination) == ["a"], what="the event")


async def test_sources_are_added_and_removed_with_their_series(tmp_path: Path) -> None:
    other = '[[source]]\nname = "other"\npath = "/other"\nsecrets = ["env:OTHER_SECRET"]\n'
    async with party(tmp_path) as there:
        signature = ("Service-Signature", signed(body("a"), secret=OTHER_SECRET))
        request = post(body("a"), signature, target="/other", sign=False)
        assert (await there.relay.ask(request)).status == 404
        changes = await there.reload(other)
        assert changes["sources"]["added"] == ["other"]
        assert 'relay_leads_captured_total{source="other"} 0.0' in await there.relay.metrics()
        assert (await there.relay.ask(request)).status == 202
        assert (await there.reload())["sources"]["removed"] == ["other"]
        assert (await there.relay.ask(request)).status == 404
        assert 'source="other"' not in await there.relay.metrics()


async def test_a_request_is_handled_by_the_config_at_its_beginning(
    destination: StubServer, there: Party
) -> None:
    async with await there.relay.call() as caller:
        await _begin(caller, body("a"))
        await there.reload(server='max_body = "1KiB"')
        answer = await caller.ask(body("a")[-1:])
        assert answer.status == 202
        # Routed by the old config: it waits in the store for a sink of this name.
        await there.reload(sink("crm", destination.url()))
        await until(lambda: ids(destination) == ["a"], what="the event")


async def _begin(caller: Caller, content: bytes) -> None:
    """Send all but the last byte, and wait until the relay reads it."""
    content_length = ("Content-Length", str(len(content)))
    signature = ("Service-Signature", signed(content))
    expects = ("Expect", "100-continue")
    caller.write(head("POST", "/webhooks", ("Host", "relay"), content_length, signature, expects))
    assert (await caller.answer(bodiless=True)).status == 100
    caller.write(content[:-1])
    await caller.flush()


async def test_limits_and_the_admin_token_change_while_the_relay_runs(tmp_path: Path) -> None:
    async with party(tmp_path) as there:
        large = post(orjson.dumps({"id": "a", "event": "x", "data": "x" * 2000}))
        changed = ADMIN.replace(TOKEN, "another-token-of-the-tests")
        changes = await there.reload(server='max_body = "1KiB"', admin=changed)
        assert changes["settings"] == ["server.max_body", "admin.token"]
        assert (await there.relay.ask(large)).status == 413
        await there.operator.get("/sinks", status=401)
        there.operator.client.headers["authorization"] = "Bearer another-token-of-the-tests"
        await there.operator.get("/sinks")


async def test_a_bad_config_changes_nothing_and_every_fault_is_reported(
    destination: StubServer, there: Party
) -> None:
    problem = await there.reload(
        sink("bi", destination.url("/bi"), 'rate = "often"'),
        status=422,
        server='max_body = "1B"',
        more="odd = 1\n",
    )
    assert problem["status"] == 422
    assert [fault["path"] for fault in problem["faults"]] == [
        "server.max_body",
        "sink[0] (bi).rate",
        "sink[0] (bi).odd",
    ]
    assert all(fault["message"] for fault in problem["faults"])
    assert await there.successful() == 0
    (line,) = there.relay.lines("config.refused")
    assert line["faults"] == "server.max_body, sink[0] (bi).rate, sink[0] (bi).odd"
    await there.send("a")
    await until(lambda: ids(destination) == ["a"], what="the event at the sink of the old config")
    await there.reload(sink("crm", destination.url()))
    assert await there.successful() == 1


@pytest.mark.parametrize("content", [b"[[", b"\xff", b"", None])
async def test_a_file_that_is_not_a_config_changes_nothing(
    tmp_path: Path, content: bytes | None
) -> None:
    async with party(tmp_path) as there:
        file = tmp_path / "config.toml"
        if content is None:
            file.unlink()
        else:
            file.write_bytes(content)
        answer = await there.operator.client.post("/-/reload")
        assert answer.status_code == 422
        assert len(answer.json()["faults"]) == 1
        await there.send("a")


@pytest.mark.parametrize(
    ("before", "after", "key"),
    [
        ('listen = "127.0.0.1:0"', 'listen = "127.0.0.1:1"', "server.listen"),
        ('admin_listen = "127.0.0.1:0"', 'admin_listen = "127.0.0.1:1"', "server.admin_listen"),
        ("relay.db", "other.db", "store.path"),
        ('min_free = "1MiB"', 'min_free = "2MiB"', "store.min_free"),
        ("[admin]", '[log]\nlevel = "debug"\n[admin]', "log.level"),
    ],
)
async def test_a_change_that_needs_a_restart_is_refused_by_its_key(
    tmp_path: Path, before: str, after: str, key: str
) -> None:
    async with party(tmp_path) as there:
        file = tmp_path / "config.toml"
        text = document(tmp_path, server='max_body = "1KiB"')
        at = text.index(f"\n{before}") + 1 if f"\n{before}" in text else text.index(before)
        file.write_text(text[:at] + text[at:].replace(before, after, 1), encoding="utf-8")
        answer = await there.operator.client.post("/-/reload")
        assert answer.status_code == 422
        (fault,) = answer.json()["faults"]
        assert fault["path"] == key
        assert "restart" in fault["message"]
        # Nothing of it is used, not even its other keys.
        large = post(orjson.dumps({"id": "a", "event": "x", "data": "x" * 2000}))
        assert (await there.relay.ask(large)).status == 202


async def test_concurrent_reloads_run_one_after_another(tmp_path: Path) -> None:
    async with StubServer() as destination, party(tmp_path) as there:
        there.write(sink("crm", destination.url()))
        answers = await asyncio.gather(*(there.operator.client.post("/-/reload") for _ in range(5)))
        added = [answer.json()["sinks"]["added"] for answer in answers]
        assert sorted(added) == [[], [], [], [], ["crm"]]


async def test_a_store_that_cannot_be_read_leaves_the_config_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, destination: StubServer
) -> None:
    async def unable(_: object) -> Any:
        raise StoreError("the store cannot be read")

    async with party(tmp_path) as there:
        with monkeypatch.context() as patch:
            patch.setattr(PausedSinks, "all", unable)
            problem = await there.reload(sink("crm", destination.url()), status=503)
        assert problem["detail"] == "the store cannot be read"
        assert await there.successful() == 0
        assert (await there.operator.get("/sinks"))["sinks"] == []
        assert (await there.reload(sink("crm", destination.url())))["sinks"]["added"] == ["crm"]


@pytest.mark.parametrize("fault", ["hangs", "raises"])
async def test_a_sink_that_fails_to_close_does_not_delay_its_successor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    async def close(_: object) -> None:
        if fault == "raises":
            raise ZeroDivisionError
        await asyncio.sleep(3600)

    monkeypatch.setattr(configured_sink, "CLOSE_TIMEOUT_S", 0.05)
    async with (
        StubServer() as old,
        StubServer() as new,
        party(tmp_path, sink("crm", old.url())) as there,
    ):
        with monkeypatch.context() as patch:
            patch.setattr(http.HttpSink, "close", close)
            await there.reload(sink("crm", new.url()))
            await there.send("a")
            await until(lambda: ids(new) == ["a"], what="the event at the successor")
        (line,) = there.relay.lines("sink.bug")
        assert line["sink"] == "crm"


async def test_only_the_token_may_reload(tmp_path: Path) -> None:
    async with party(tmp_path) as there:
        answer = await there.operator.client.post("/-/reload", headers={"authorization": "Bearer"})
        assert answer.status_code == 401
        assert (await there.operator.client.get("/-/reload")).status_code == 405
        assert there.relay.lines("config.reloaded") == []


async def test_a_sink_that_can_no_longer_be_built_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, destination: StubServer
) -> None:
    async with party(tmp_path) as there:
        made: list[str] = []

        def build(settings: http.Settings, clock: Any) -> Any:
            made.append(settings.name)
            if len(made) > 1:
                raise ValueError("ca_file: cannot be read")
            return _build(settings, clock)

        _build = http.build
        monkeypatch.setattr("relay.sinks.http.build", build)
        problem = await there.reload(sink("crm", destination.url()), status=422)
        assert problem["faults"] == [{"path": "sink", "message": "ca_file: cannot be read"}]
        assert (await there.operator.get("/sinks"))["sinks"] == []


async def test_a_replay_reaches_a_sink_that_was_added_later(tmp_path: Path) -> None:
    async with StubServer() as destination, party(tmp_path) as there:
        await there.send("a")
        await there.reload(sink("late", destination.url()))
        await there.operator.post("/replays", {"sink": "late", "outcome": "missed"})
        await until(lambda: ids(destination) == ["a"], what="the past")


async def test_the_responses_are_documented(tmp_path: Path) -> None:
    async with party(tmp_path) as there:
        described = (await there.operator.get("/openapi.json"))["paths"]["/-/reload"]["post"]
        assert set(described["responses"]) >= {"200", "401", "422"}


async def test_a_stopping_relay_refuses_a_reload(tmp_path: Path) -> None:
    async with party(tmp_path) as there:
        there.relay.service._stopping = True
        answer = await there.operator.client.post("/-/reload")
        assert answer.status_code == httpx.codes.SERVICE_UNAVAILABLE
        there.relay.service._stopping = False


async def _streamed(lines: AsyncIterator[str]) -> Any:
    """The next activity that concerns the config."""
    async with asyncio.timeout(10):
        async for line in lines:
            happening = orjson.loads(line.removeprefix("data: ")) if line[:1] == "d" else {}
            if happening.get("what") == "reload":
                assert happening.pop("at").endswith("Z")
                assert happening.pop("at_ms") > 0
                return happening
    raise AssertionError


async def test_subscribers_get_every_reload_taken_or_refused(tmp_path: Path) -> None:
    async with (
        StubServer() as destination,
        party(tmp_path) as there,
        there.operator.client.stream("GET", "/api/v1/stream") as answer,
    ):
        lines = answer.aiter_lines()
        assert await anext(lines) == ": watching"
        await there.reload(sink("crm", destination.url()), server='max_body = "1KiB"')
        assert await _streamed(lines) == {
            "what": "reload",
            "outcome": "taken",
            "reason": "asked for",
            "added": ["sink.crm"],
            "changed": ["server.max_body"],
            "removed": [],
        }
        await there.reload(sink("crm", destination.url(), 'rate = "whsec_marked"'), status=422)
        assert await _streamed(lines) == {
            "what": "reload",
            "outcome": "refused",
            "reason": "asked for",
            "faults": ["sink[0] (crm).rate"],
        }


async def test_subscribers_get_a_reload_that_the_store_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unable(_: object) -> Any:
        raise StoreError("the store cannot be read")

    async with (
        party(tmp_path) as there,
        there.operator.client.stream("GET", "/api/v1/stream") as answer,
    ):
        lines = answer.aiter_lines()
        assert await anext(lines) == ": watching"
        monkeypatch.setattr(PausedSinks, "all", unable)
        await there.reload(status=503)
        told = await _streamed(lines)
        assert (told["outcome"], told["message"]) == ("refused", "the store cannot be read")
