"""Exactly 300 s pass and 301 s do not, both ways, by the machine's clock and in the whole service.

The rules for freezing time under asyncio are those of dependencies.md, section 5.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from freezegun import freeze_time

from relay.core import signature
from relay.core.authentication import SigningSecret, SourceSettings, authenticate
from relay.core.clock import SystemClock
from relay.core.config_values import Duration, Secret
from relay.core.errors import Rejected
from tests import service
from tests.caller import PATH, SECRET, post

SIGNED_AT = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)
SIGNED_S = int(SIGNED_AT.timestamp())
BODY = b'{"id":"evt_1","event":"video.ready","createdAt":"2026-03-02T09:30:00.000Z","data":{}}'
HEADER = signature.header(SECRET.encode(), now_s=SIGNED_S, body=BODY)

EDGES = [
    (0, None),
    (299, None),
    (300, None),
    (300.001, None),
    (300.999, None),
    (301, "stale"),
    (86_400, "stale"),
    (-299, None),
    (-300, None),
    (-300.001, "future"),
    (-301, "future"),
    (-86_400, "future"),
]
"""How far our clock is ahead of the sender's whole seconds, and what becomes of the request."""


@contextmanager
def ahead_by(seconds: float) -> Iterator[None]:
    with freeze_time(SIGNED_AT + timedelta(seconds=seconds), real_asyncio=True):
        yield


def reason(*, tolerance: str = "5m") -> str | None:
    source = SourceSettings(
        name="main",
        path=PATH,
        secrets=(SigningSecret(secret=Secret(SECRET)),),
        tolerance=Duration.parse(tolerance),
    )
    headers = [(b"service-signature", HEADER.encode())]
    try:
        authenticate(source, headers, BODY, now_ms=SystemClock().now_ms())
    except Rejected as rejected:
        return rejected.reason
    return None


def test_the_default_clock_tells_the_frozen_time_in_milliseconds() -> None:
    with ahead_by(2):
        assert SystemClock().now_ms() == SIGNED_S * 1000 + 2_000


@pytest.mark.parametrize(("seconds", "expected"), EDGES)
def test_the_tolerance_ends_at_its_edge_both_ways(seconds: float, expected: str | None) -> None:
    with ahead_by(seconds):
        assert reason() == expected


@pytest.mark.parametrize(
    ("tolerance", "seconds", "expected"),
    [
        ("10s", 10, None),
        ("10s", 11, "stale"),
        ("10s", -11, "future"),
        ("1500ms", 1, None),
        ("1500ms", 2, "stale"),
        ("1h", 3_600, None),
    ],
)
def test_the_tolerance_is_a_setting(tolerance: str, seconds: int, expected: str | None) -> None:
    with ahead_by(seconds):
        assert reason(tolerance=tolerance) == expected


async def test_the_whole_service_has_the_edges_of_the_tolerance(tmp_path: Path) -> None:
    request = post(BODY, ("Service-Signature", HEADER), sign=False)
    told = {}
    with ahead_by(0):
        settings = service.read(tmp_path)
        async with service.serving(settings, clock=SystemClock()) as relay:
            for seconds, _ in EDGES:
                with ahead_by(seconds):
                    told[seconds] = (await relay.ask(request)).status
            rejected = await relay.counts("relay_rejected_total")
            skews = await relay.counts("relay_signature_skew_seconds_count")
    taken = [seconds for seconds, expected in EDGES if expected is None]
    assert told == {seconds: 401 for seconds, _ in EDGES} | dict.fromkeys(taken, 200) | {0: 202}
    assert rejected == {("stale", "main"): 2, ("future", "main"): 3}
    # Also what was refused shows how far off the clocks are.
    assert skews == {("main",): len(EDGES)}
