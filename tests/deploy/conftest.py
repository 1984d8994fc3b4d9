"""What several parts of deploy/ are tested with."""

from collections.abc import Iterator

import pytest

from tests.deploy import blocks
from tests.deploy.prometheus import Prometheus, require_prometheus


@pytest.fixture(scope="session")
def scripted_day(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A running Prometheus that has the day of day.py, and what its rules record of it.

    Ask it for instants and ranges between `story.START_S` and `story.END_S`; it scrapes nothing.
    """
    require_prometheus()
    folder = tmp_path_factory.mktemp("day") / "data"
    blocks.write(folder)
    with Prometheus(data=folder) as server:
        yield server
