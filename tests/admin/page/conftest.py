"""What tests of several views share."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests import service
from tests.admin.page.visiting import ADMIN, VIEWER_TOKEN, Start, Visitor, visiting
from tests.service import Relay
from tests.stub_server import StubServer


@pytest.fixture
def start(tmp_path: Path, destination: StubServer) -> Start:
    def started(more: str = "") -> contextlib.AbstractAsyncContextManager[Relay]:
        return service.serving(service.read(tmp_path, tables=ADMIN + more, destination=destination))

    return started


@pytest.fixture
async def relay(start: Start) -> AsyncIterator[Relay]:
    async with start() as relay:
        yield relay


@pytest.fixture
async def visitor(relay: Relay) -> AsyncIterator[Visitor]:
    async with visiting(relay) as visitor:
        yield visitor


@pytest.fixture
async def viewer(relay: Relay) -> AsyncIterator[Visitor]:
    """A visitor who may change nothing."""
    async with visiting(relay, token=VIEWER_TOKEN) as viewer:
        yield viewer
