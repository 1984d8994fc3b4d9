"""A developer with a sandbox, and a relay with much to see."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.cli.scene import Scene, staged
from tests.cli.sender import Developer, developing


@pytest.fixture
async def developer(tmp_path: Path) -> AsyncIterator[Developer]:
    async with developing(tmp_path) as developer:
        yield developer


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    async with staged(tmp_path) as scene:
        yield scene
