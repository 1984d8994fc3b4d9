"""Reconstructions whose original has not arrived, in memory, so that acceptance asks no query."""

from collections.abc import Iterable
from typing import Self

from relay.core import reconstruction
from relay.core.event import Event
from relay.store.sqlite.driver import sqlite3

_OPEN = "SELECT source, id, seq FROM events WHERE reconstructed = 1"


class Outstanding:
    """Finds the reconstruction of an original; false while there can be none."""

    def __init__(self, known: Iterable[tuple[str, str, int]] = ()) -> None:
        self._open: dict[tuple[str, str], int | None] = {
            (source, id_): seq for source, id_, seq in known
        }
        self._arrived: dict[str, set[str]] = {}

    @classmethod
    def of_store(cls, db: sqlite3.Connection) -> Self:
        return cls(db.execute(_OPEN))

    def __bool__(self) -> bool:
        return bool(self._open or self._arrived)

    def find(self, original: Event) -> tuple[str, int | None] | None:
        """Return id and number of an original's reconstruction, and note that it has arrived.

        The number is None for one that is being written.
        """
        source = original.source
        ids = reconstruction.ids(original.kind, original.document())
        if source in self._arrived:
            self._arrived[source].update(ids)
        for id_ in ids:
            if (source, id_) in self._open:
                return id_, self._open[source, id_]
        return None

    def announce(self, source: str) -> None:
        """Note which originals of a source arrive from now on."""
        self._arrived[source] = set()

    def conclude(self, source: str) -> None:
        self._arrived.pop(source, None)

    def has_arrived(self, source: str, id_: str) -> bool:
        """Whether the original of a reconstruction has arrived since the announcement."""
        return id_ in self._arrived.get(source, ())

    def is_open(self, source: str, id_: str) -> bool:
        return (source, id_) in self._open

    def add(self, source: str, id_: str) -> None:
        """Note a reconstruction that is about to be written."""
        self._open[source, id_] = None

    def written(self, source: str, id_: str, seq: int) -> None:
        """Set its number, unless its original has superseded it already."""
        if (source, id_) in self._open:
            self._open[source, id_] = seq

    def remove(self, source: str, id_: str) -> None:
        """Forget one that was superseded, or that was not written."""
        self._open.pop((source, id_), None)
