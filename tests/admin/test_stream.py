"""The API's stream of live activity and the token that it was opened with."""

import asyncio
from pathlib import Path

from tests.caller import post
from tests.operator import TOKEN, Operator
from tests.service import Relay
from tests.stub_server import DEADLINE_S


async def test_a_stream_says_nothing_more_once_a_reload_has_replaced_its_token(
    tmp_path: Path, relay: Relay, operator: Operator
) -> None:
    async with operator.client.stream("GET", "/api/v1/stream", timeout=DEADLINE_S) as response:
        lines = response.aiter_lines()
        assert await anext(lines) == ": watching"
        file = tmp_path / "config.toml"
        file.write_text(file.read_text().replace(TOKEN, "another-token-after-a-leak"))
        (await operator.client.post("/-/reload")).raise_for_status()
        await relay.ask(post(b'{"id": "evt_1", "event": "video.ready", "data": {}}'))
        async with asyncio.timeout(DEADLINE_S):
            assert "".join([line async for line in lines]) == ""
