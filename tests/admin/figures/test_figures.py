"""Two totals of one thing are equal: on every view, in the API, in commands, metrics and SQL."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.admin.figures import cluster, day
from tests.admin.figures.book import Book, Figure
from tests.admin.figures.places import Reader
from tests.store.places import PostgresPlace, SqlitePlace

pytestmark = pytest.mark.servers

AGREEMENT_S = 20.0
"""Time until all places agree; the relays of a cluster learn of each other's latest."""

STATUS = {"API /status", "relay status --json", "relay status"}
SINKS = {*STATUS, "API /sinks", "relay sinks list", "page /", "page /sinks"}
PAGES = {"page /", "page /sinks", "page /sinks/crm", "page /dead-letters", "page /unreadable"}
MORE_PAGES = {"page /audience?period=all", "page /absences", "page /replays", "page /config"}
EVENTS = "page /events?count=long"

PLACES: dict[Figure, set[str]] = {
    ("sink", "parked", "state"): {*SINKS, "page /sinks/parked", "metrics"},
    ("sink", "parked", "since"): {*STATUS, "API /sinks", "page /sinks/parked", "metrics"},
    ("sink", "mail", "pending"): {*SINKS, "page /sinks/mail", "metrics", "SQL"},
    ("sink", "mail", "oldest"): {*SINKS, "page /sinks/mail", "metrics", "SQL"},
    ("sink", "old", "pending"): {*SINKS, "page /sinks/old", "metrics", "SQL"},
    ("sink", "billing", "dead"): {*SINKS, "page /sinks/billing", "metrics", "SQL"},
    ("sink", "crm", "in"): {*SINKS, "page /sinks/crm", "metrics"},
    ("sink", "crm", "out"): {*SINKS, "page /sinks/crm", "metrics"},
    ("sink", "sales", "done"): {*SINKS, "page /sinks/sales"},
    ("sink", "crm", "in flight"): {"API /status", "API /sinks", "page /sinks/crm"},
    ("sink", "crm", "last minute"): {"API /status", "API /sinks", "page /sinks/crm"},
    ("sink", "sales", "last error"): {"API /status", "page /sinks/sales", "relay sinks list"},
    ("pending",): {"API /status", "relay status --json", "page /", "SQL"},
    ("oldest",): {"API /status", "relay status --json", "page /"},
    ("dead",): {"API", "API /status", "SQL", "page /dead-letters.csv", *PAGES, *MORE_PAGES},
    ("unreadable",): {
        *{"API", "API /status", "page /dead-letters", "page /unreadable"},
        *{"relay unreadable list", "SQL"},
    },
    ("events",): {"API", EVENTS, "SQL"},
    ("events", "dead"): {"API", "page /events?outcome=dead&count=long", "SQL"},
    ("hour", "accepted"): {"API /statistics", "page /", "SQL"},
    ("hour", "delivered"): {"API /statistics", "page /", "SQL"},
    ("hour", "failed"): {"API /statistics", "page /", "SQL"},
    ("last minute",): {"API /statistics", "page /", "SQL"},
    ("last event",): {"API /statistics", "page /", "SQL"},
    ("median",): {"API /statistics", "page /"},
    ("attempts", "crm", "delivered"): {"API /statistics", "page /sinks/crm", "SQL"},
    ("last", "main", "lead.captured"): {*STATUS, "metrics", "SQL"},
    ("new leads", "main"): {"metrics", "SQL"},
    ("away",): {*STATUS, "page /", "metrics"},
    ("started",): {"API /status", "relay status --json", "page /", "page /config"},
    ("lost",): {*STATUS, "metrics"},
    ("store bytes",): {*STATUS, "page /", "page /config", "metrics"},
    ("clock",): {"API /status", "relay status --json", "page /"},
    ("clock", "main"): {*STATUS, "page /config"},
    ("verified", "main"): {*STATUS, "page /config"},
    ("absence", "2", "away"): {"API", "page /", "page /absences", "relay absences list"},
    ("absence", "2", "missed"): {"API", "page /", "page /absences", "relay absences list"},
    ("replay", "1", "done"): {"API", "page /replays", "page /replays/1", "relay replays list"},
    ("reconciliation", "1", "report"): {"API", "page /reconciliations"},
    ("reconciliation", "1", "begun"): {
        "API",
        "page /reconciliations",
        "relay reconciliations list",
    },
    ("erasure", "1", "events"): {"API", "page /people"},
    ("rotation", "other", "waiting"): {
        *{"API", "page /config/sources/other/rotation"},
        *{"relay rotate status --source other", "metrics"},
    },
    ("people", "started"): {"API /audience", "page /audience?period=all", "relay audience", "SQL"},
    ("people", "lead"): {"API /audience", "page /audience?period=all", "relay audience", "SQL"},
    ("forms",): {"API /audience", "page /audience?period=all", "relay audience"},
}
"""Figures of the day, with the places that say them; each kind of figure is here at least once."""


async def agreed(read: Callable[[Book], Awaitable[None]]) -> Book:
    """Read until all places agree: a sink may be probed, or a relay know more, between two of them.

    What differs for good fails with all its differences.
    """
    until_s = time.monotonic() + AGREEMENT_S
    while True:
        book = Book()
        await read(book)
        found = book.differences()
        if not found:
            return book
        if time.monotonic() > until_s:
            pytest.fail("\n".join([f"{len(found)} differences", *found]))
        await asyncio.sleep(1)


async def test_every_place_says_the_same_after_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The day steps the clock, and looks itself: the size of the store changes while it is read.
    monkeypatch.setattr("relay.app.maintenance.GAUGES_EVERY_S", 3600.0)
    async with day.played(tmp_path) as relay:
        rows = SqlitePlace(tmp_path).rows
        book = await agreed(lambda book: Reader(relay, book).read(rows))
    said = book.figures
    assert {figure: places - said.get(figure, set()) for figure, places in PLACES.items()} == {
        figure: set() for figure in PLACES
    }


@pytest.mark.long
async def test_both_relays_of_a_cluster_say_the_same(
    tmp_path: Path, postgres_place: PostgresPlace
) -> None:
    async with cluster.played(tmp_path, postgres_place) as members:

        async def read(book: Book) -> None:
            for name, member in zip("ab", members, strict=True):
                await Reader(member.relay, book, name).read(postgres_place.rows)

        await agreed(read)
