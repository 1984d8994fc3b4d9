"""The API's stream of live activity and the token that it was opened with."""

import asyncio
from pathlib import Path

from tests import service
from tests.caller import post
from tests.operator import ADMIN, TOKEN, operating
from tests.stub_server import DEADLINE_S


async def test_a_stream_says_nothing_more_once_a_reload_has_replaced_its_token(
    tmp_path: Path,
) -> None:
    settings = service.read(tmp_path, tables=ADMIN)
    async with (
        service.serving(settings) as relay,
        operating(relay) as operator,
        operator.client.stream("GET", "/api/v1/stream", timeout=DEADLINE_S) as response,
    ):
        lines = response.aiter_lines()
        assert await anext(lines) == ": watching"
        file = tmp_path / "config.toml"
        file.write_text(file.read_text().replace(TOKEN, "another-token-after-a-leak"))
        (await operator.client.post("/-/reload")).raise_for_status()
        await relay.ask(post(b'{"id": "evt_1", "event": "video.ready", "data": {}}'))
        async with asyncio.timeout(DEADLINE_S):
            assert "".join([line async for line in lines]) == ""
