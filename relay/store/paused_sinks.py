"""Sinks that operators have paused, a subject of its own."""

from collections.abc import Mapping

from relay.store.repository import Repository, rows
from relay.store.sql import Database, Sql, Values

_PAUSE = Sql("""
INSERT INTO main.paused_sinks (sink, since) VALUES (:sink, :since) ON CONFLICT (sink) DO NOTHING
""")
_RESUME = Sql("DELETE FROM main.paused_sinks WHERE sink = :sink")
_ALL = Sql("SELECT sink, since FROM main.paused_sinks ORDER BY sink")


class PausedSinks(Repository):
    """The paused sinks, configured or not; all methods may raise StoreError."""

    async def pause(self, sink: str, *, now_ms: int) -> None:
        """Note that a sink is paused; one that is paused already stays so since then."""
        await self._order(_PAUSE, {"sink": sink, "since": now_ms})

    async def resume(self, sink: str) -> None:
        """Note that a sink is not paused."""
        await self._order(_RESUME, {"sink": sink})

    async def retry(self, sink: str) -> None:
        """Have the relay try the sink at once that dispatches it, where that is another one."""
        await self._background.transact(lambda db: self._connections.announce(db, sink_to_try=sink))

    async def all(self) -> Mapping[str, int]:
        """Return the paused sinks with the times of their pauses."""
        # A sink that begins waits for it.
        return dict(await rows(self._connections.leaser, _ALL, {}))

    async def _order(self, text: Sql, values: Values) -> None:
        def order(db: Database) -> None:
            db.execute(text, values)
            self._connections.announce(db)

        await self._background.transact(order)
