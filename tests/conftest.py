"""What all tests share: the event loop they run on, a clock that stands still, an event."""

from dataclasses import dataclass

import pytest

from relay import samples
from relay.event import LEAD_CAPTURED, Event

NOW_MS = 1_772_443_800_000


@dataclass
class ManualClock:
    """A clock that moves only when a test moves it."""

    ms: int = NOW_MS

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def lead() -> Event:
    return samples.event(LEAD_CAPTURED, source="main", event_id="evt_lead")
