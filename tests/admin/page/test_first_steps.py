"""What a fresh relay's page says to do first; its commands work as they stand."""

import asyncio
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from relay.core.event import WEBHOOK_TEST
from tests.admin.page.document import Element
from tests.admin.page.visiting import Start, Visitor, visiting
from tests.operator import operating
from tests.service import OTHER_SECRET, Relay

needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")

OTHER = """
[[source]]
name = "other"
path = "/other"
secrets = [{ secret = "one-that-is-past-its-end", until = 2020-01-01 }, "env:OTHER_SECRET"]
signature_header = "X-Other-Signature"
"""

ENDED = """
[[source]]
name = "ended"
path = "/ended"
secrets = [{ secret = "one-that-is-past-its-end", until = 2020-01-01 }]
"""


def commands(page: Element, program: str) -> list[list[str]]:
    found = [each.text for each in page.all("code") if each.text.startswith(program)]
    return [shlex.split(each) for each in found]


async def run(words: list[str], relay: Relay) -> str:
    """Run a command of the page, on the port that the system has assigned."""
    *rest, url = words
    url = url.replace(":0/", f":{relay.service.public.port}/")
    process = await asyncio.create_subprocess_exec(
        *rest, "--silent", url, stdout=asyncio.subprocess.PIPE
    )
    answer, _ = await process.communicate()
    return answer.decode()


async def events(relay: Relay) -> list[dict[str, Any]]:
    async with operating(relay) as operator:
        listed: list[dict[str, Any]] = (await operator.get("/events"))["events"]
    return listed


@pytest.mark.servers
@needs_curl
@pytest.mark.parametrize("path", ["/", "/events"])
async def test_each_source_has_its_url_and_a_signed_test_that_it_takes(
    start: Start, path: str
) -> None:
    async with start(OTHER) as relay, visiting(relay) as visitor:
        page = await visitor.see(path)
        assert "http://127.0.0.1:0/other" in page.text
        signed = commands(page, "curl -i")
        assert [command[-1].rpartition("/")[2] for command in signed] == ["webhooks", "other"]
        for command in signed:
            assert "202 Accepted" in await run(command, relay)
        assert {(each["source"], each["kind"]) for each in await events(relay)} == {
            ("main", WEBHOOK_TEST),
            ("other", WEBHOOK_TEST),
        }
        assert OTHER_SECRET not in visitor.html


async def test_the_command_of_each_source_names_the_config_and_the_source(
    start: Start, tmp_path: Path
) -> None:
    async with start(OTHER) as relay, visiting(relay) as visitor:
        config = ["--config", str(tmp_path / "config.toml")]
        assert commands(await visitor.see("/"), "relay send") == [
            ["relay", "send", "lead.captured", *config, "--source", name]
            for name in ("main", "other")
        ]


async def test_a_source_without_a_valid_secret_has_no_signed_test(start: Start) -> None:
    async with start(ENDED) as relay, visiting(relay) as visitor:
        page = await visitor.see("/")
        assert len(commands(page, "relay send")) == 2
        assert len(commands(page, "curl -i")) == 1


async def test_viewers_get_no_signed_test(viewer: Visitor) -> None:
    for path in ("/", "/events"):
        page = await viewer.see(path)
        assert commands(page, "relay send")
        assert not commands(page, "curl -i")


@pytest.mark.servers
@needs_curl
async def test_the_first_steps_disappear_with_the_first_event(start: Start) -> None:
    async with start() as relay, visiting(relay) as visitor:
        (command,) = commands(await visitor.see("/"), "curl -i")
        await run(command, relay)
        assert not (await visitor.see("/")).has_id("first-steps")
        assert not (await visitor.see("/events")).has_id("none")
