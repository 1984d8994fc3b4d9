"""`relay check-config --connect` says what the sender's API allows, and changes nothing."""

import json
from pathlib import Path

import pytest

from tests.cli.sender import Developer, developing
from tests.stub_server import Reply, StubServer

pytestmark = pytest.mark.servers

SINK = '[[sink]]\nname = "crm"\ntype = "http"\nurl = "{}"\nevents = ["{}"]\n'


async def checked(developer: Developer) -> tuple[int, dict[str, object]]:
    """Return the exit code, and what is said of the API."""
    done = await developer.run("check-config --connect --json")
    (api,) = json.loads(done.output)["apis"]
    assert api.pop("source") == "main"
    return done.exit_code, api


async def test_a_good_key_and_endpoint_are_reported(tmp_path: Path) -> None:
    async with developing(tmp_path) as developer, StubServer() as destination:
        developer.rest = SINK.format(destination.url(), "lead.captured")
        endpoint = await developer.register(more=" --events lead.captured")
        assert await checked(developer) == (
            0,
            {
                "ok": True,
                "text": "the key works and may read analytics; "
                f"endpoint {endpoint} receives lead.captured",
            },
        )
        printed = await developer.run("check-config --connect")
        assert "  source main (API): the key works" in printed.output


async def test_events_that_sinks_miss_are_named(tmp_path: Path, destination: StubServer) -> None:
    async with developing(tmp_path) as developer:
        developer.rest = SINK.format(destination.url(), "*")
        await developer.register(more=" --events lead.captured,video.watched,video.created")
        code, api = await checked(developer)
    assert code == 1
    assert "the sinks also want video.ready, video.failed, video.deleted:" in str(api["text"])


async def test_a_missing_endpoint_is_not_a_fault(developer: Developer) -> None:
    await developer.register()
    developer.write()
    code, api = await checked(developer)
    assert (code, api["ok"]) == (0, True)
    assert str(api["text"]).endswith("no endpoint is set: relay endpoint register")


async def test_a_permission_that_the_key_lacks_is_named(developer: Developer) -> None:
    endpoint = await developer.register()
    developer.is_admin = False
    developer.write(endpoint)
    code, api = await checked(developer)
    text = f"endpoint {endpoint}: no access, which needs a key with the access Admin"
    assert (code, str(api["text"]).endswith(text)) == (1, True)
    developer.is_admin = True
    developer.write("wh_of_nobody")
    code, api = await checked(developer)
    assert (code, str(api["text"]).endswith("endpoint wh_of_nobody: not found")) == (1, True)


async def test_a_key_that_is_refused_and_an_api_that_is_down_are_named(tmp_path: Path) -> None:
    async with developing(tmp_path) as developer:
        endpoint = await developer.register()
        text = developer.config.read_text(encoding="utf-8")
        developer.config.write_text(text.replace('key = "', 'key = "x'), encoding="utf-8")
        assert await checked(developer) == (1, {"ok": False, "text": "key refused"})
        developer.write(endpoint)
        await developer.served.control("down", {"seconds": 60})
        assert await checked(developer) == (1, {"ok": False, "text": "connection closed"})


async def test_the_check_sends_reads_only(developer: Developer, destination: StubServer) -> None:
    destination.reply = lambda _: Reply(200, b'{"webhook": {"id": "wh_01"}}')
    endpoint = await developer.register()
    text = developer.config.read_text(encoding="utf-8")
    url = destination.url().rstrip("/")
    developer.config.write_text(text.replace(developer.served.url, url), encoding="utf-8")
    code, _ = await checked(developer)
    assert code == 0
    assert [(request.method, request.target) for request in destination.requests] == [
        ("GET", "/v1/analytics/live"),
        ("GET", f"/v1/webhooks/{endpoint}"),
    ]
