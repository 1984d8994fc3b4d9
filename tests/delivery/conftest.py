"""Tests of dispatchers run in virtual time; a module that needs real time says so."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.virtual_time import VirtualLoop, still_while_the_store_works


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": VirtualLoop}


@pytest.fixture(autouse=True)
def _still() -> Iterator[None]:
    with still_while_the_store_works():
        yield
