"""Whatever fails, no secret, signature, hook, address or body is in what the relay says."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import orjson
import pytest

from relay.core import signature
from tests.guarantees.process import Relay, http_client, until
from tests.ports import free_port
from tests.stub_server import Reply, Request, StubServer

MARK = "l3ak"
"""Stands in every secret, hook, address, name and body below, and in nothing that may be shown."""

SECRET = f"whsec-{MARK}-source-0123456789"
ADMIN_TOKEN = f"{MARK}-admin-token-0123456789"
SIGNING = f"whsec_{MARK * 10}"

SINKS = """
[[sink]]
name = "echo"
type = "http"
url = "{echo}/hook/l3ak-path?token=l3ak-query"
headers = {{ authorization = "Bearer l3ak-bearer" }}
signing_secrets = ["{signing}"]
retry = {{ first = "50ms", max = "100ms", give_up_after = "1s" }}

[[sink]]
name = "odd"
type = "http"
url = "{odd}/hook/l3ak-odd"
concurrency = 1
retry = {{ first = "20ms", max = "20ms" }}

[[sink]]
name = "tls"
type = "http"
url = "https://l3akuser:l3akpassword@127.0.0.1:{no_tls}/l3ak-tls"

[[sink]]
name = "refused"
type = "http"
url = "http://127.0.0.1:{nobody}/l3ak-refused"

[[sink]]
name = "nowhere"
type = "http"
url = "http://l3ak-host.invalid/l3ak-nowhere"

[[sink]]
name = "hanging"
type = "http"
url = "{hanging}/l3ak-hanging"
timeout = "300ms"

[[sink]]
name = "slack"
type = "slack"
url = "{slack}/services/T000/B000/l3ak-slack"
rate = "100/s"

[[sink]]
name = "template"
type = "slack"
events = ["lead.captured"]
url = "{slack}/services/T000/B000/l3ak-template"
text = "A lead {{% if 'Person' in data.name %}}{{{{ data[data.name].x }}}}{{% endif %}}"

[[sink]]
name = "rule"
type = "http"
events = ["lead.captured"]
when = "contains(data.name, 'x')"
url = "{echo}/l3ak-rule"
"""

ODD = (
    Reply(404, body=b"no l3ak here"),
    Reply(400, body=b"l3ak is bad"),
    Reply(429, body=b"too many l3ak", headers={"retry-after": "0"}),
    Reply(302, headers={"location": "http://l3ak.example/l3ak"}),
    Reply(401, headers={"www-authenticate": "l3ak"}),
    b"l3ak is no HTTP at all\r\n\r\n",
    Reply(200, body=b"thanks for l3ak"),
)

BUGS = """
from relay.sinks.http.sink import HttpSink
from relay.store.sqlite.store import SqliteStore

send, accept = HttpSink.send, SqliteStore.accept

async def faulty_send(self, event):
    if event.kind == "video.deleted":
        raise RuntimeError(f"l3ak {event.body!r}") from ValueError("l3ak cause")
    return await send(self, event)

async def faulty_accept(self, event, *rest):
    if event.kind == "video.failed":
        raise RuntimeError(f"l3ak {event!r}") from ValueError("l3ak cause")
    return await accept(self, event, *rest)

HttpSink.send, SqliteStore.accept = faulty_send, faulty_accept
"""

_SINK = 'secrets = ["l3ak-a"]\n[[sink]]\nname = "a"\ntype = "{type}"\n{rest}'
BAD_CONFIGS = (
    'secrets = "l3ak-not-a-list"',
    'secrets = [{ value = "l3ak-nested" }]',
    'secrets = ["l3ak-never-closed',
    'secrets = ["file:/nowhere"]\n[admin]\ntoken = ["l3ak-token"]',
    _SINK.format(type="http", rest='url = "l3ak-no-scheme"'),
    _SINK.format(type="http", rest='url = "http://l3ak:l3ak@[l3ak"'),
    _SINK.format(type="slack", rest='url = ["http://l3ak"]'),
    _SINK.format(type="http", rest='url = "http://h/l3ak"\nheaders = "l3ak"'),
    _SINK.format(type="http", rest='url = "http://h/l3ak"\nsigning_secrets = ["whsec_l3ak!"]'),
    _SINK.format(type="http", rest='url = "http://h/l3ak"\nheaders = { a = ["l3ak"] }'),
    _SINK.format(type="http", rest='url = "http://h/l3ak"\nheaders = { cookie = "l3ak\\u0001" }'),
)

FOR_EACH = """
import sys
from relay.cli import main

_, command, *paths = sys.argv
for path in paths:
    try:
        main([*command.split(), "--config", path])
    except SystemExit as end:
        print("exit code", end.code, flush=True)
"""
"""One process for all configs, because most of its time goes into its start."""

_POST = b"POST /webhooks HTTP/1.1\r\nhost: relay\r\n"

REJECTED = frozenset(
    {"missing", "ambiguous", "malformed", "mismatch", "stale", "future"}
    | {"too_large", "timeout", "path", "method"}
)


@dataclass
class Heard:
    """All that the relay has said to anybody but its sinks, and what must not be in it."""

    words: list[str] = field(default_factory=list)
    signatures: set[str] = field(default_factory=set)

    def answer(self, answer: httpx.Response) -> None:
        self.words += [f"{answer.status_code} {answer.headers!r} {answer.text}"]

    def leaks(self) -> list[str]:
        """Every line with a mark or a signature in it."""
        lines = [line for words in self.words for line in words.splitlines()]
        return [line for line in lines if any(each in line for each in (MARK, *self.signatures))]


@pytest.mark.parametrize("form", ["json", "console"])
async def test_no_secret_and_no_personal_data_in_any_output(tmp_path: Path, form: str) -> None:
    heard = Heard()
    async with _scene(tmp_path, heard, form=form) as relay:
        await relay.start()
        await _send_bad_requests(relay, heard)
        await _send_events(relay, heard)
        await _wait_for_every_failure(relay)
        await _look_around(relay, heard)
        check = ("check-config", "--connect", "--config", str(relay.config))
        heard.words.append(await _start("-m", "relay", *check))
        await relay.kill()
        await relay.start()
        assert await relay.stop() == 0
        await _serve_without_room(relay, heard)
    heard.words.append(relay.output(last=1 << 30))
    log = heard.words[-1]
    for told in ("sink.bug", "receiver.bug", "event.conflict", "event.unreadable", "sink.parked"):
        assert told in log
    assert "store.unavailable" in log
    assert log.count("delivery.dead") > 2
    assert "Traceback" not in log
    assert heard.leaks() == []


@pytest.mark.parametrize(
    ("command", "code"),
    [("serve", os.EX_CONFIG), ("check-config", 1), ("check-config --json", 1)],
)
async def test_no_secret_in_the_faults_of_a_config(tmp_path: Path, command: str, code: int) -> None:
    paths = [tmp_path / f"config{number}.toml" for number in range(len(BAD_CONFIGS))]
    for path, text in zip(paths, BAD_CONFIGS, strict=True):
        path.write_text(f'[[source]]\nname = "main"\npath = "/w"\n{text}\n')
    told = await _start("-c", FOR_EACH, command, *map(str, paths))
    assert told.count(f"exit code {code}\n") == len(paths)
    assert all(path.name in told for path in paths)
    assert Heard([told]).leaks() == []


@asynccontextmanager
async def _scene(folder: Path, heard: Heard, *, form: str) -> AsyncIterator[Relay]:
    (folder / "bugs").mkdir()
    (folder / "bugs" / "sitecustomize.py").write_text(BUGS)
    async with AsyncExitStack() as stack:
        echo, odd, hanging, slack = [
            await stack.enter_async_context(StubServer()) for _ in range(4)
        ]
        echo.reply = lambda request: _echo(request, heard)
        hanging.reply = lambda _: None
        replies = iter(range(1 << 30))
        odd.reply = lambda _: ODD[next(replies) % len(ODD)]
        slack.reply = lambda request: Reply(400, body=b"invalid_blocks l3ak " + request.body)
        sinks = SINKS.format(
            echo=echo.url(""),
            odd=odd.url(""),
            no_tls=await stack.enter_async_context(_no_tls()),
            hanging=hanging.url(""),
            slack=slack.url(""),
            nobody=free_port(),
            signing=SIGNING,
        )
        yield await stack.enter_async_context(
            Relay(
                folder,
                sinks=sinks,
                secret=SECRET,
                server='max_body = "4KiB"\nbody_timeout = "300ms"\ndrain_timeout = "1s"',
                rest=f'[admin]\ntoken = "{ADMIN_TOKEN}"\n'
                f'[log]\nformat = "{form}"\nlevel = "debug"\n',
                environ={"PYTHONPATH": str(folder / "bugs"), "PYTHONASYNCIODEBUG": "1"},
            )
        )


@asynccontextmanager
async def _no_tls() -> AsyncIterator[int]:
    """The port of a destination that answers a TLS handshake with words."""

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"l3ak\r\n")
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


def _echo(request: Request, heard: Heard) -> Reply:
    """A destination that tells all it was told: the URL, the headers and the body."""
    heard.signatures.update(request.header.get("webhook-signature", "").split())
    said = f"{request.target} {request.headers!r} ".encode() + request.body
    return Reply(500, body=said, headers={"x-echo": request.target})


def _body(event_id: str, kind: str, **data: object) -> bytes:
    person = {"email": "l3ak.person@example.com", "name": "l3ak Person", "phone": "+49 30 l3ak"}
    video = {"id": "vid_l3ak", "title": "l3ak title"}
    document = {
        "id": event_id,
        "event": kind,
        "createdAt": "2026-03-02T09:30:00.000Z",
        "data": {**person, "fields": {"message": "l3ak"}, "video": video, **data},
    }
    return orjson.dumps(document)


def _sign(body: bytes, *, shift_s: int = 0, secret: str = SECRET) -> str:
    return signature.header(secret.encode(), now_s=int(time.time()) + shift_s, body=body)


async def _send_bad_requests(relay: Relay, heard: Heard) -> None:
    body = _body("evt_bad", "lead.captured")
    good = _sign(body)
    headers: Iterable[list[tuple[str, str]]] = (
        [],
        [("service-signature", good), ("service-signature", good)],
        [("service-signature", "t=l3ak,v1=l3ak")],
        [("service-signature", _sign(body, secret="l3ak-another"))],
        [("service-signature", _sign(body, shift_s=-1000))],
        [("service-signature", _sign(body, shift_s=1000))],
    )
    async with http_client() as client:
        for each in headers:
            heard.signatures.update(value[-64:] for _, value in each if len(value) > 64)
            more = [("user-agent", "l3ak"), ("x-request-id", "l3ak@example.com"), *each]
            answer = await client.post(relay.url, content=body, headers=more)
            assert answer.status_code == httpx.codes.UNAUTHORIZED
            heard.answer(answer)
        heard.answer(await client.get(relay.url + "?l3ak=l3ak"))
        heard.answer(await client.post(relay.url + "/l3ak-unknown", content=body))
    for raw in (
        b"l3ak l3ak\r\n\r\n",
        _POST + b"content-length: 9\r\n\r\nl3ak",
        _POST + b"content-length: 99999\r\n\r\n",
        _POST + b"transfer-encoding: chunked\r\n\r\n1388\r\n" + b"l3ak " * 1000 + b"\r\n",
    ):
        heard.words.append((await _say(relay.port, raw)).decode())


async def _say(port: int, raw: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(raw)
    answer = await reader.read()
    writer.close()
    return answer


async def _send_events(relay: Relay, heard: Heard) -> None:
    bodies = [
        *(_body(f"evt_lead_{number}", "lead.captured") for number in range(8)),
        _body("evt_lead_0", "lead.captured", other="l3ak"),
        _body("evt_rule", "lead.captured", name={"l3ak": "l3ak"}),
        _body("evt_watched", "video.watched", milestone="l3ak", progress="l3ak", viewer="l3ak"),
        _body("evt_bug", "video.deleted"),
        _body("evt_refused", "video.failed"),
        b"l3ak is not JSON",
        b'["l3ak"]',
        b'{"id": "", "event": "l3ak"}',
        b'{"l3ak": 1, "l3ak": 2}',
        b"\xff\xfel3ak",
    ]
    async with http_client() as client:
        for body in bodies:
            signed = _sign(body)
            heard.signatures.add(signed[-64:])
            headers = {"service-signature": signed, "cookie": "l3ak", "authorization": "l3ak"}
            heard.answer(await client.post(relay.url, content=body, headers=headers))


async def _wait_for_every_failure(relay: Relay) -> None:
    for reason in sorted(REJECTED):
        assert await relay.metric("relay_rejected_total", reason=reason) > 0, reason
    for sink, result in (
        ("echo", "dead"),
        ("odd", "parked"),
        ("odd", "dead"),
        ("tls", "retry"),
        ("refused", "retry"),
        ("nowhere", "retry"),
        ("hanging", "retry"),
        ("slack", "dead"),
        ("template", "dead"),
    ):
        await until(
            lambda sink=sink, result=result: _has_attempted(relay, sink, result),  # type: ignore[misc]
            what=f"{result} at {sink}",
        )
    await until(lambda: _has_dead(relay, "rule"), what="the dead letter of the rule")


async def _has_attempted(relay: Relay, sink: str, result: str) -> bool:
    return await relay.metric("relay_attempts_total", sink=sink, result=result) > 0


async def _has_dead(relay: Relay, sink: str) -> bool:
    return await relay.metric("relay_dead_letters", sink=sink) > 0


async def _look_around(relay: Relay, heard: Heard) -> None:
    async with http_client() as client:
        for path in ("/metrics", "/healthz", "/readyz", "/api/v1/l3ak", "/-/reload"):
            for token in ("l3ak-wrong", ADMIN_TOKEN):
                headers = {"authorization": f"Bearer {token}", "accept": "l3ak"}
                for method in ("GET", "POST"):
                    url = relay.admin_url + path
                    heard.answer(await client.request(method, url, headers=headers))


async def _serve_without_room(relay: Relay, heard: Heard) -> None:
    config = relay.config.read_text()
    relay.config.write_text(config.replace('min_free = "0B"', 'min_free = "1024GiB"'))
    await relay.spawn()
    await until(lambda: _has_problems(relay), what="/readyz to tell of the floor")
    async with http_client() as client:
        body = _body("evt_full", "lead.captured")
        headers = {"service-signature": _sign(body)}
        answer = await client.post(relay.url, content=body, headers=headers)
        assert answer.status_code == httpx.codes.SERVICE_UNAVAILABLE
        heard.answer(answer)
        heard.answer(await client.get(relay.admin_url + "/readyz"))
    assert await relay.stop() == 0


async def _has_problems(relay: Relay) -> bool:
    return bool(await relay.problems())


async def _start(*arguments: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    return output.decode()
