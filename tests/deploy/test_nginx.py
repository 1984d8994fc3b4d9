"""The shipped nginx: it shields the relay and bridges gaps, beyond the tests of all proxies."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest

from relay.config import ServerSettings
from tests import service
from tests.caller import PATH, Caller, head
from tests.deploy.proxies import HOST, SHIPPED, STRANGER, Nginx, chunked, event, in_front, post
from tests.deploy.test_proxy_files import directives
from tests.service import Relay
from tests.stub_server import Reply, StubServer, until

MAX_BODY = ServerSettings().max_body
SENDERS_PATIENCE_S = 10


@pytest.fixture
async def relay(tmp_path: Path) -> AsyncIterator[Relay]:
    async with service.serving(service.read(tmp_path)) as relay:
        yield relay


@pytest.fixture
async def nginx(tmp_path: Path, relay: Relay) -> AsyncIterator[Nginx]:
    async with in_front(Nginx, tmp_path, relay_port=relay.service.public.port) as nginx:
        yield nginx


class ExistingNginx(Nginx):
    """An nginx with other sites that includes the folder relay/ only."""

    def write(self) -> None:
        super().write()
        config = self.folder / "nginx" / "nginx.conf"
        temp = re.findall(r"\w+_temp_path [^;]+;", config.read_text())
        config.write_text(
            EXISTING.format(
                folder=self.folder,
                temp=" ".join(temp),
                listen=f"127.0.0.1:{self.port}",
                certificate=self.certificate,
            )
        )


EXISTING = """
pid {folder}/nginx.pid;
events {{}}
http {{
    {temp}
    access_log {folder}/access.log;
    gzip on;
    proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
    include relay/upstream.conf;

    server {{
        listen {listen} ssl;
        ssl_certificate {certificate};
        ssl_certificate_key {certificate};
        client_max_body_size 10k;

        location / {{ return 301 /elsewhere; }}
        location ~ hooks {{ return 418; }}
        location ~* ^/web {{ return 418; }}
        include relay/sources.conf;
    }}
}}
"""


@pytest.mark.parametrize("target", [PATH, f"{PATH}/"])
async def test_the_folder_works_inside_an_existing_server(
    tmp_path: Path, relay: Relay, target: str
) -> None:
    port = relay.service.public.port
    async with in_front(ExistingNginx, tmp_path, relay_port=port) as nginx:
        large = post(event(MAX_BODY), target=target)
        forged = post(b"{}", ("X-Forwarded-For", "203.0.113.7"), target=target, sign=False)
        assert (await nginx.ask(large)).status == 202
        assert (await nginx.ask(forged)).status == 401
    (line,) = relay.lines("request.refused")
    assert line["client"] == STRANGER


async def test_a_slow_body_is_passed_on_only_when_complete(nginx: Nginx, relay: Relay) -> None:
    async with contextlib.AsyncExitStack() as open_:
        for _ in range(20):
            caller = await open_.enter_async_context(await nginx.call())
            caller.write(post(event(1000))[:-100])
            await caller.flush()
        good = await asyncio.wait_for(nginx.ask(post(event(100))), SENDERS_PATIENCE_S)
        # The one of the good request is kept for the next.
        connections = len(relay.service.public._connections)
    assert good.status == 202
    assert connections <= 1
    assert await relay.counts("relay_requests_total") == {("202", "main"): 1}


async def test_one_address_cannot_take_all_connections(nginx: Nginx) -> None:
    limit = int(directives(SHIPPED / "nginx/nginx.conf")["limit_conn"].split()[1])
    begun = post(event(1000))[:-500]
    slow: list[Caller] = []

    async def dribble() -> None:
        """Keep the first ones open: nginx ends a body that says nothing for 5 s."""
        while True:
            await asyncio.sleep(1)
            for caller in slow:
                caller.write(b"x")

    async with contextlib.AsyncExitStack() as held:
        dribbling = asyncio.create_task(dribble())
        held.callback(dribbling.cancel)
        while len(slow) < limit:
            caller = await held.enter_async_context(await nginx.call())
            caller.write(begun)
            await caller.flush()
            slow.append(caller)
        async with asyncio.timeout(SENDERS_PATIENCE_S):
            while (await nginx.ask(post(event(100)))).status != 503:
                await asyncio.sleep(0.02)
        other = await nginx.ask(post(event(100)), caller="127.0.0.3")
    assert other.status in (200, 202)


@pytest.mark.parametrize("chunk", [1000, 50_000])
async def test_no_body_touches_the_proxys_disk(nginx: Nginx, chunk: int) -> None:
    body = event(MAX_BODY)
    assert (await nginx.ask(post(body))).status == 202
    assert (await nginx.ask(chunked(body, size=chunk))).status == 200
    assert "temporary file" not in nginx.error_log.read_text()


async def test_a_body_over_the_limit_does_not_reach_the_relay(nginx: Nginx, relay: Relay) -> None:
    assert (await nginx.ask(post(event(MAX_BODY + 1)))).status == 413
    assert (await nginx.ask(chunked(event(MAX_BODY + 1), size=10_000))).status == 413
    assert await relay.counts("relay_requests_total") == {}


async def test_one_request_has_one_id_in_both_logs(nginx: Nginx, relay: Relay) -> None:
    await nginx.ask(post(b"{}", sign=False))
    (refused,) = relay.lines("request.refused")
    await until(lambda: nginx.access_log.read_bytes().endswith(b"\n"), what="the access log")
    (line,) = [orjson.loads(line) for line in nginx.access_log.read_bytes().splitlines()]
    assert line["request_id"] == refused["request_id"]
    assert (line["status"], line["client"], line["path"]) == (401, refused["client"], PATH)


async def test_a_request_is_repeated_unchanged_once_after_the_relay_closes(
    tmp_path: Path,
) -> None:
    body = event(1000)
    async with (
        StubServer() as relay,
        in_front(Nginx, tmp_path, relay_port=relay.port) as nginx,
    ):
        relay.reply = lambda _: b"" if len(relay.requests) == 1 else Reply(202, b"{}")
        assert (await nginx.ask(post(body))).status == 202
    first, second = relay.requests
    assert first.body == second.body == body
    changed = {"connection", "host"}  # the first one keeps its connection alive
    assert [each for each in first.headers if each[0] not in changed] == [
        each for each in second.headers if each[0] not in changed
    ]
    assert "connection" not in first.header
    assert second.header["connection"] == "close"


async def test_a_client_abort_does_not_abort_the_request_to_the_relay(tmp_path: Path) -> None:
    asked, gone = asyncio.Event(), asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n{}")
        asked.set()
        await gone.wait()
        writer.write(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(slow, "127.0.0.1", 0) as relay:
        port = relay.sockets[0].getsockname()[1]
        async with in_front(Nginx, tmp_path, relay_port=port) as nginx:
            async with await nginx.call() as caller:
                caller.write(post(b"{}"))
                await asyncio.wait_for(asked.wait(), SENDERS_PATIENCE_S)
                caller._writer.transport.abort()
            # Later ones are served: by then nginx has read that the first one is gone.
            for _ in range(10):
                await nginx.ask(head("GET", "/", ("Host", HOST)))
            gone.set()
            await until(
                lambda: b'"upstream_status":"202"' in nginx.access_log.read_bytes(), what="202"
            )


async def test_a_second_failure_is_answered_502(tmp_path: Path) -> None:
    async with (
        StubServer() as relay,
        in_front(Nginx, tmp_path, relay_port=relay.port) as nginx,
        await nginx.call() as caller,
    ):
        relay.reply = lambda _: b""
        caller.write(post(event(100)))
        assert (await caller._reader.readline()).startswith(b"HTTP/1.1 502 ")
    assert len(relay.requests) == 2
