"""A large request is verified and routed beside the event loop, where no other waits for it."""

import threading
from pathlib import Path
from typing import Any

import orjson
import pytest

from relay.core import signature
from relay.core.large_bodies import LARGE_BYTES
from relay.core.routing import Route
from tests.caller import post
from tests.service import read, serving
from tests.stub_server import StubServer

SINK = '[[sink]]\nname = "crm"\ntype = "http"\nurl = "{url}"\nwhen = "data.items[?chosen]"\n'


def body(size: int) -> bytes:
    items = [{"chosen": True}] * (size // len('{"chosen":true},'))
    return orjson.dumps({"id": f"evt_{size}", "event": "video.ready", "data": {"items": items}})


@pytest.mark.parametrize(("size", "beside"), [(1000, False), (3 * LARGE_BYTES, True)])
async def test_only_a_large_request_leaves_the_event_loop(
    tmp_path: Path,
    destination: StubServer,
    monkeypatch: pytest.MonkeyPatch,
    size: int,
    beside: bool,
) -> None:
    threads = set[bool]()

    def noted(function: Any) -> Any:
        def call(*arguments: Any, **more: Any) -> Any:
            threads.add(threading.current_thread() is not threading.main_thread())
            return function(*arguments, **more)

        return call

    async with serving(read(tmp_path, tables=SINK.format(url=destination.url()))) as relay:
        request = post(body(size))
        monkeypatch.setattr(signature, "verify", noted(signature.verify))
        monkeypatch.setattr(Route, "evaluate", noted(Route.evaluate))
        assert (await relay.ask(request)).status == 202
        await relay.until_counted("relay_deliveries_total", "delivered", "crm")
    assert threads == {beside}
