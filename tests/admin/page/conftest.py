"""What tests of several views share."""

import contextlib
from pathlib import Path

import pytest

from tests import service
from tests.admin.page.visiting import ADMIN, Start
from tests.service import Relay
from tests.sinks.far_end import FarEnd


@pytest.fixture
def start(tmp_path: Path, far_end: FarEnd) -> Start:
    def started(more: str = "") -> contextlib.AbstractAsyncContextManager[Relay]:
        return service.serving(service.read(tmp_path, tables=ADMIN + more, far_end=far_end))

    return started
