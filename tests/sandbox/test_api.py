"""The API as a whole: keys, limits, errors, faults on request, and its own document."""

import asyncio
import sys
from pathlib import Path

import httpx
import pytest

from relay.core.clock import SystemClock
from relay.sandbox.model import Access
from tests.sandbox.service import MEDIA, Served, serving
from tests.stub_server import StubServer

pytestmark = pytest.mark.servers

SCHEMATHESIS = Path(sys.executable).with_name("schemathesis")
SCHEMATHESIS_DEADLINE_S = 240.0

# What is well formed may still be unknown, forbidden by a state, too large, or of no use.
SETTINGS = """
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "404", "409", "413", "415", "422"]
"""

READ: Access = "Read only"
WRITE: Access = "Read & write videos"
ADMIN: Access = "Admin"


@pytest.mark.parametrize(
    ("method", "path", "body", "least"),
    [
        ("GET", "/v1/videos", None, READ),
        ("POST", "/v1/videos/uploads", {**MEDIA, "size": 5}, WRITE),
        ("POST", "/v1/videos/import", {"url": "https://files.example.com/a.mp4"}, WRITE),
        ("DELETE", "/v1/videos/{video}", None, WRITE),
        ("GET", "/v1/webhooks", None, ADMIN),
        ("POST", "/v1/webhooks", {"url": "http://127.0.0.1:1/", "events": []}, ADMIN),
    ],
)
async def test_a_key_may_do_what_its_access_says(
    method: str, path: str, body: object, least: Access, served: Served
) -> None:
    levels = [READ, WRITE, ADMIN]
    path = path.format(video=(await served.add())["id"])
    answers = [await served.ask(method, path, json=body, access=level) for level in levels]
    refused = [answer.status_code == 403 for answer in answers]
    assert refused == [levels.index(level) < levels.index(least) for level in levels]
    assert all(answer.is_success for answer in answers if answer.status_code != 403)
    assert all(answer.json()["error"]["message"] for answer in answers if not answer.is_success)


@pytest.mark.parametrize("value", [None, "", "Bearer", "Bearer x", "Basic x", "Bearer \xe9"])
async def test_a_request_without_a_valid_key_gets_401(value: str | None, served: Served) -> None:
    headers = {} if value is None else {"Authorization": value.encode("latin-1")}
    answer = await served.client.get("/v1/videos", headers=headers)  # type: ignore[arg-type]
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "unauthorized"


async def test_keys_are_created_used_and_revoked_at_once(served: Served) -> None:
    body = {"name": "A report", "access": READ}
    created = (await served.control("keys", body)).json()["key"]
    headers = {"Authorization": f"Bearer {created['value']}"}
    await served.step(60)
    assert (await served.client.get("/v1/videos", headers=headers)).status_code == 200
    keys = (await served.client.get("/sandbox/keys")).json()["keys"]
    assert [key["access"] for key in keys] == [READ, WRITE, ADMIN, READ]
    assert keys[-1]["lastUsedAt"] == "2026-03-02T09:31:00.000Z"
    await served.control(f"keys/{created['id']}/revoke")
    assert (await served.client.get("/v1/videos", headers=headers)).status_code == 401
    assert (await served.client.post("/sandbox/keys/key_0/revoke", json={})).status_code == 404


async def test_each_key_has_600_requests_a_minute_whatever_the_speed() -> None:
    async with serving(speed=60) as served:
        for _ in range(600):
            assert (await served.ask("GET", "/v1/videos")).status_code == 200
        refused = await served.ask("GET", "/v1/videos")
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limited")
        assert refused.headers["Retry-After"] == "60"
        assert (await served.ask("GET", "/v1/videos", access=READ)).status_code == 200
        await served.step(59)
        assert (await served.ask("GET", "/v1/videos")).headers["Retry-After"] == "1"
        await served.step(1)
        assert (await served.ask("GET", "/v1/videos")).status_code == 200


@pytest.mark.parametrize("says_when", [True, False])
async def test_requests_are_refused_with_429_for_a_while(says_when: bool, served: Served) -> None:
    await served.control("limits", {"seconds": 30, "retryAfter": says_when})
    refused = await served.ask("GET", "/v1/videos")
    assert refused.status_code == 429
    assert refused.headers.get("Retry-After") == ("30" if says_when else None)
    await served.step(30)
    assert (await served.ask("GET", "/v1/videos")).status_code == 200


async def test_while_it_is_down_connections_are_closed_without_an_answer(served: Served) -> None:
    await served.control("down", {"seconds": 30})
    for path in ("/v1/videos", "/v1/openapi.json", "/storage/x"):
        with pytest.raises(httpx.RemoteProtocolError, match="without sending a response"):
            await served.client.get(path)
    await served.step(30)
    assert (await served.ask("GET", "/v1/videos")).status_code == 200


async def test_answers_can_be_slow(served: Served) -> None:
    await served.control("answers", {"slow": 5})
    with pytest.raises(httpx.ReadTimeout):
        await served.client.get("/v1/videos", headers=served.headers("Admin"), timeout=0.2)
    await served.control("answers", {})
    assert (await served.ask("GET", "/v1/videos")).status_code == 200


async def test_answers_can_be_false(served: Served) -> None:
    video = await served.add("A tour")
    lies = {"drop": ["videos.title", "next"], "change": {"videos.version": "second"}}
    await served.control("answers", lies)
    document = (await served.ask("GET", "/v1/videos")).json()
    assert document == {
        "videos": [
            {key: value for key, value in video.items() if key != "title"} | {"version": "second"}
        ]
    }
    await served.control("answers", {})
    assert (await served.ask("GET", "/v1/videos")).json()["videos"] == [video]


async def test_the_clock_can_be_paused_and_sped_up(destination: StubServer) -> None:
    async with serving(clock=SystemClock()) as served:
        await served.control("clock", {"stopped": True})
        await served.register(destination.url(), "video.ready")
        await served.add()
        await served.ask("GET", "/v1/videos")
        assert destination.requests == []
        answer = await served.control("clock", {"stopped": False, "speed": 60})
        assert answer.json() == {"speed": 60.0, "stopped": False}
        async with asyncio.timeout(10):
            while not destination.requests:
                await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("method", "path", "content", "code"),
    [
        ("GET", "/v1/nothing", b"", 404),
        ("GET", "/v1/videos/vid_000009", b"", 404),
        ("PUT", "/v1/videos", b"", 405),
        ("POST", "/v1/videos/uploads", b"{", 400),
        ("POST", "/v1/videos/uploads", b"[" * 60_000, 400),
        ("POST", "/v1/videos/uploads", b'{"title": "\\ud800"}', 400),
        ("POST", "/v1/videos/uploads", b"[]", 422),
        ("POST", "/v1/videos/uploads", b'"' + b"x" * 70_000 + b'"', 413),
        ("GET", "/v1/videos?limit=0", b"", 422),
        ("GET", "/v1/videos?limit=1&limit=2", b"", 422),
        ("GET", "/v1/videos?folder=1", b"", 422),
        ("POST", "/sandbox/clock", b'{"speed": 0}', 422),
    ],
)
async def test_errors_have_one_form(method: str, path: str, content: bytes, code: int) -> None:
    async with serving() as served:
        headers = served.headers("Admin")
        answer = await served.client.request(method, path, content=content, headers=headers)
    assert answer.status_code == code, answer.text
    assert list(answer.json()) == ["error"]
    assert list(answer.json()["error"]) == ["code", "message"]


async def test_the_document_names_every_operation_once_with_its_access(served: Served) -> None:
    document = (await served.client.get("/v1/openapi.json")).json()
    operations = [each for path in document["paths"].values() for each in path.values()]
    names = [each["operationId"] for each in operations]
    assert len(names) == len(set(names))
    assert all(each["summary"] for each in operations)
    assert {"create_upload", "import_video", "rotate_secret", "list_deliveries"} <= set(names)
    assert "403" in document["paths"]["/v1/webhooks"]["get"]["responses"]
    assert "403" not in document["paths"]["/v1/videos"]["get"]["responses"]


@pytest.mark.long
async def test_every_answer_conforms_to_the_document(tmp_path: Path) -> None:
    async with serving(clock=SystemClock(), speed=60) as served:
        await served.add()
        (tmp_path / "schemathesis.toml").write_text(SETTINGS, encoding="utf-8")
        authorization = served.headers("Admin")["Authorization"]
        # Beyond its limit every answer would be 429.
        served.sandbox.keys.limits.requests = 1_000_000
        command = [
            str(SCHEMATHESIS),
            *("run", f"{served.url}/v1/openapi.json"),
            *("--header", f"Authorization: {authorization}"),
            *("--max-examples", "10", "--generation-deterministic", "--no-color"),
        ]
        running = await asyncio.create_subprocess_exec(
            *command,
            cwd=tmp_path,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        async with asyncio.timeout(SCHEMATHESIS_DEADLINE_S):
            printed, _ = await running.communicate()
    assert running.returncode == 0, printed.decode()[-6000:]
