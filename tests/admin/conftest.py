"""A relay with an operator."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests import service
from tests.operator import ADMIN, Operator, operating
from tests.service import Relay
from tests.stub_server import StubServer


@pytest.fixture
async def relay(tmp_path: Path, destination: StubServer) -> AsyncIterator[Relay]:
    settings = service.read(tmp_path, tables=ADMIN, destination=destination)
    async with service.serving(settings) as relay:
        yield relay


@pytest.fixture
async def operator(relay: Relay) -> AsyncIterator[Operator]:
    async with operating(relay) as operator:
        yield operator
