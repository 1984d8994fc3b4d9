"""Findings on the store and its disk."""

import shlex
from collections.abc import Iterator

from relay.admin.facts import Facts, StoreFacts
from relay.admin.verdict.finding import Finding, ahead, is_over, requests
from relay.core.minutes import DAY_MS
from relay.core.units import size

UNREADABLE_MS = DAY_MS

CLOCK_OFFSET_S = 5.0
"""Difference of the clocks that no network explains."""

LOG_MAX_BYTES = 32 << 20
"""Without a long read, the log stays at about 4 MiB."""

LOW_SPACE_FACTOR = 2
"""Multiple of `min_free` below which the disk is nearly full."""


def findings(facts: Facts) -> Iterator[Finding]:
    if facts.draining:
        yield Finding(
            severity="info",
            what="the relay is stopping",
            why="senders get 503 until it has started again",
            next="relay status",
            runbook="relaydiskfilling",
        )
    else:
        yield from _disk(facts.store)
    yield from _content(facts.store)
    yield from _clock_offset(facts.store)


def clock(store: StoreFacts) -> str:
    """Name the clock by which the relay goes."""
    return "the database's clock" if store.folder is None else "this host's clock"


def _disk(store: StoreFacts) -> Iterator[Finding]:
    disk = store.disk
    free, least = disk.free_bytes, disk.min_free_bytes
    if store.folder is None or free is None or least is None:
        if store.unready:
            yield _unready(store, next="relay check-config --connect")
        return
    show_disk = f"df -h {shlex.quote(store.folder)}"
    space = f"{size(free)} free, min_free is {size(least)}"
    if store.unready and free <= least:
        yield _unready(store, space, next=show_disk)
    elif store.unready:
        yield _unready(store, next="dmesg --ctime | tail -50")
    elif free < LOW_SPACE_FACTOR * least:
        yield Finding(
            severity="ticket",
            what="the disk of the store is nearly full",
            why=f"{space}; the store takes {size(disk.store_bytes)}",
            next=show_disk,
        )
    if disk.log_bytes is not None and disk.log_bytes > LOG_MAX_BYTES:
        yield Finding(
            severity="ticket",
            what=f"the store's log has grown to {size(disk.log_bytes)}",
            why="a reader, such as a forgotten sqlite3, keeps it from being written home",
            next=f"lsof +D {shlex.quote(store.folder)}",
        )


def _unready(store: StoreFacts, *causes: str, next: str) -> Finding:  # noqa: A002  as Finding has it
    return Finding(
        severity="page",
        what="no events are accepted: senders get 503",
        # Another relay that shares the store may accept them, and writes heartbeats.
        since_ms=store.unready_since_ms or store.alive_ms,
        why="; ".join((*store.unready, *causes)),
        next=next,
        runbook="relaynotready",
    )


def _clock_offset(store: StoreFacts) -> Iterator[Finding]:
    offset = ahead(store.clock_offset_s, of="the database's")
    if abs(store.clock_offset_s) > CLOCK_OFFSET_S:
        yield Finding(
            severity="ticket",
            what=f"this host's clock is {offset}",
            why="one of them is wrong; the relay goes by the database's, its log by this host's",
            next="timedatectl status",
            runbook="relayclockoffset",
        )


def _content(store: StoreFacts) -> Iterator[Finding]:
    if store.unread is not None:
        yield Finding(
            severity="ticket",
            what="the store cannot be read: this status is incomplete",
            why=store.unread,
            next="relay store check",
            runbook="relaynotready",
        )
    for warning in store.warnings:
        yield Finding(
            severity="ticket",
            what="the database is not set up as the relay needs it",
            why="{reason}: {advice}".format(**warning.fields),
            next="relay check-config --connect",
        )
    if store.unclean:
        yield Finding(
            severity="info",
            what="the whole store is being checked",
            why="it was not closed cleanly before this start",
            next="relay store check",
        )


def unreadable(store: StoreFacts, *, now_ms: int) -> Iterator[Finding]:
    """Yield the finding on verified requests without an event."""
    if store.unreadable:
        is_old = is_over(store.unreadable_ms, UNREADABLE_MS, now_ms=now_ms)
        yield Finding(
            severity="info" if is_old else "ticket",
            what=f"{requests(store.unreadable)} held no readable event",
            since_ms=store.unreadable_since_ms,
            why="their signatures are valid, so they are kept; no sink gets them",
            next="relay unreadable list",
            runbook="relayunreadableevents",
        )
