"""What tests of several views share."""

import contextlib
from pathlib import Path

import pytest

from tests import service
from tests.admin.page.visiting import ADMIN, Start
from tests.service import Relay
from tests.stub_server import StubServer


@pytest.fixture
def start(tmp_path: Path, destination: StubServer) -> Start:
    def started(more: str = "") -> contextlib.AbstractAsyncContextManager[Relay]:
        return service.serving(service.read(tmp_path, tables=ADMIN + more, destination=destination))

    return started
