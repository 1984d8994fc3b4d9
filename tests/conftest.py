"""What all tests share: the event loop they run on, a clock that stands still, an event.

Where RELAY_REQUIRE_SERVERS is set, a test that is skipped fails, unless the skip is declared.
"""

import gc
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import structlog.testing

from relay.core import sample_events
from relay.core.event import LEAD_CAPTURED, Event
from tests import loop_limit, loop_watch, scratch, selection, service
from tests.caller import Caller
from tests.service import Relay
from tests.store import migrated as migrated_stores
from tests.store.places import PostgresPlace
from tests.stub_server import StubServer

NOW_MS = 1_772_443_800_000


@dataclass
class ManualClock:
    """A clock that moves only when a test moves it."""

    ms: int = NOW_MS

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000


# Started in the background of a script, it would be ignored here and by all programs under test.
signal.signal(signal.SIGINT, signal.default_int_handler)

scratch.use_memory()

# A worker of pytest-xdist sets it, and tables would be laid out for a narrow terminal.
os.environ.pop("COLUMNS", None)

# Hundreds of programs are started, and each would compile the relay anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# httpcore searches all folders for it at each request, in vain.
sys.modules.setdefault("sniffio", None)  # type: ignore[arg-type]

# A busy machine is no fault of the code.
hypothesis.settings.register_profile(
    "relay", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("relay")


def pytest_configure(config: pytest.Config) -> None:
    folder = tempfile.TemporaryDirectory()
    config.add_cleanup(folder.cleanup)
    config.pluginmanager.register(loop_limit.Plugin(Path(folder.name)))


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    return selection.workers()


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> selection.Scheduler:
    return selection.Scheduler(config, log)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return selection.is_left_out(collection_path, config.option.markexpr) or None


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if report.passed and collector.path == Path(__file__).parent:
        report.result = selection.from_own_part(report.result)
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    selection.prepare(items)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep thousands of tests from being looked through in each of the many collections."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Keep all that outlives a file's tests from being looked through in later collections.

    The last of them fails for what they have left open.
    """
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, object]]:
    return "asyncio", {"loop_factory": loop_watch.PlainLoop}


@pytest.fixture(scope="session", autouse=True)
def migrated() -> Iterator[None]:
    with migrated_stores.copied():
        yield


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def lead() -> Event:
    return sample_events.event(LEAD_CAPTURED, source="main", event_id="evt_lead")


@pytest.fixture
def lines() -> Iterator[list[Any]]:
    """What is logged, as structlog's dictionaries."""
    with structlog.testing.capture_logs() as captured:
        yield captured


@pytest.fixture
async def destination() -> AsyncIterator[StubServer]:
    async with StubServer() as destination:
        yield destination


@pytest.fixture
def postgres_place() -> Iterator[PostgresPlace]:
    place = PostgresPlace()
    yield place
    place.drop()


@pytest.fixture
async def relay(tmp_path: Path, destination: StubServer) -> AsyncIterator[Relay]:
    """A relay with one sink, at the destination."""
    async with service.serving(service.read(tmp_path, destination=destination)) as relay:
        yield relay


@pytest.fixture
async def caller(relay: Relay) -> AsyncIterator[Caller]:
    """A connection to the relay's public listener."""
    async with await relay.call() as caller:
        yield caller


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if _is_for_want(report):
        # With the servers, CI runs only tests that have the mark.
        is_marked = item.get_closest_marker("servers") is not None
        if os.environ.get("RELAY_REQUIRE_SERVERS"):
            report.outcome = "failed"
            report.longrepr = f"not to be skipped here: {report.longrepr}"
        elif not is_marked:
            report.outcome = "failed"
            report.longrepr = f"to be marked with `servers`, since it skips: {report.longrepr}"
    return report


def _is_for_want(report: pytest.TestReport) -> bool:
    """Whether a server or a tool is missing: a skip that is meant says `declared:`."""
    if not report.skipped or hasattr(report, "wasxfail"):
        return False
    return not (
        isinstance(report.longrepr, tuple) and report.longrepr[2].startswith("Skipped: declared:")
    )
