"""Retention in rounds over the store, some rows at a time, oldest first."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from relay.store import StoreSettings

STEP_ROWS = 100
STEP_BYTES = 1 << 20
"""Limits per transaction, because removing data takes time by its size too."""

SCAN_ROWS = 5000
"""Rows scanned per step, because other reads wait for the same connection."""

AUDIT_MS = 400 * 86_400_000
"""Retention of the audit log: a year and some time to review it."""


class Keep(NamedTuple):
    """Retention times: of the first glob that matches a row's kind, else of all others."""

    kinds: tuple[tuple[str, int], ...]
    others_ms: int
    since: str = "received_at"
    """Column of the time from which they run."""

    def times(self, now_ms: int) -> list[str | int]:
        """Return each glob with its limit, and then the limit of all others."""
        times: list[str | int] = []
        for glob, keep_ms in self.kinds:
            times += [glob, now_ms - keep_ms]
        return [*times, now_ms - self.others_ms]


class Times(msgspec.Struct, frozen=True):
    """Retention times of a store."""

    bodies: Keep
    unreadable_bodies: Keep
    ids: Keep
    absences: Keep
    audit: Keep
    reports: Keep
    """Of the names in reports of reconciliations."""

    @classmethod
    def of(cls, settings: StoreSettings) -> "Times":
        """Take the shortest time first, which applies where several globs match."""
        ordered = sorted(settings.retention.items(), key=lambda item: item[1])
        ids = Keep((), settings.dedupe_retention)
        return cls(
            bodies=Keep(
                tuple((glob, int(keep_ms)) for glob, keep_ms in ordered), settings.payload_retention
            ),
            unreadable_bodies=Keep((), settings.payload_retention),
            ids=ids,
            absences=ids._replace(since="to_at"),
            audit=Keep((), AUDIT_MS, "begun_at"),
            reports=Keep((), settings.payload_retention, "begun_at"),
        )


class Round(msgspec.Struct):
    """Position in a round, which goes over the rows of one phase after another."""

    phases: int
    phase: int = 0
    start: int = 0
    end: int | None = None
    """Last row of the phase, as of its beginning."""

    @property
    def is_over(self) -> bool:
        return self.phase == self.phases

    def begin(self) -> None:
        """Begin the next round."""
        self.phase = self.start = 0
        self.end = None

    def window(self, first: int | None, last: int | None) -> range | None:
        """Return the keys to look at, from the first one there is; without one, end the phase.

        `last` is the last key there is, of which only the first one of a phase counts.
        """
        if self.end is None:
            self.end = last
        if first is None or self.end is None or first > self.end:
            self.phase += 1
            self.start, self.end = 0, None
            return None
        return range(first, min(first + SCAN_ROWS, self.end + 1))

    def looked(self, window: range, keys: Sequence[int], taken: Sequence[int]) -> None:
        """Go on behind what was taken of the rows that were found in a window."""
        is_rest_left = len(taken) < len(keys) or len(keys) == STEP_ROWS
        self.start = taken[-1] + 1 if is_rest_left else window.stop
