"""A sandbox that is served."""

from collections.abc import AsyncIterator

import pytest

from tests.sandbox.service import Served, serving


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving() as served:
        yield served
