"""Word of new deliveries, from the relay that accepted an event to those that dispatch its sinks.

It saves them the wait for their next look, and may be lost. It is sent after the commit, in a
transaction of its own: in that of the acceptance, NOTIFY would make all commits of the database
wait for each other.
"""

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import msgspec

from relay.core.errors import StoreUnavailable
from relay.store.postgres.connection import Connection
from relay.store.postgres.driver import Database, psycopg

if TYPE_CHECKING:
    from socket import socket

GAP_S = 0.005
"""Shortest time between two notifications of one relay."""

PAYLOAD_MAX = 7_000
"""Bytes; the server takes 8,000. A longer list is sent as an empty text, which means all sinks."""

T = TypeVar("T")


class Notifications:
    """Sends and receives on one connection, which others use through `run`."""

    def __init__(
        self, connection: Connection, *, heard: Callable[[Collection[str] | None], None]
    ) -> None:
        """`heard` is called with the sinks that have new deliveries; None if any may have."""
        self._connection = connection
        self._heard = heard
        self._running = 0
        self._database: Database | None = None
        """Of the last run, as its thread has left it."""
        self._arrived: list[str] = []
        self._watched: tuple[Database, socket] | None = None
        self._unannounced: set[str] = set()
        self._sending: asyncio.Task[None] | None = None
        self._receiving: asyncio.Task[None] | None = None

    @property
    def is_listening(self) -> bool:
        """Whether other relays' notifications arrive, as far as is known."""
        database = self._database
        return database is not None and database.is_listening and database.is_usable

    async def run(self, work: Callable[[Database], T]) -> T:
        """Run on the connection, which listens from then on; raises psycopg.Error."""
        self._running += 1
        self._pause()
        try:
            return await self._connection.run(lambda db: self._work(db, work))
        finally:
            self._running -= 1
            if not self._running:
                self._watch()
            self._notify_listener()

    def send(self, sinks: Collection[str]) -> None:
        """Tell the other relays of new deliveries of these sinks, soon."""
        self._unannounced.update(sinks)
        if self._sending is None or self._sending.done():
            self._sending = asyncio.get_running_loop().create_task(self._send())

    def hang_up(self) -> None:
        """Break the connection: what runs on it fails."""
        self._connection.hang_up()

    async def close(self) -> None:
        """Close the connection, whatever runs on it."""
        for task in (self._sending, self._receiving):
            if task is not None:
                task.cancel()
        self._running += 1
        self._pause()
        if self._watched is not None:
            self._watched[1].close()
        await self._connection.cut_off()

    def _work(self, database: Database, work: Callable[[Database], T]) -> T:
        self._database = database
        database.listen()
        result = work(database)
        # A line of its own, because the event loop may take the list while it waits.
        arrived = database.notifications()
        self._arrived.extend(arrived)
        return result

    async def _send(self) -> None:
        while self._unannounced:
            payload = msgspec.json.encode(sorted(self._unannounced)).decode()
            self._unannounced.clear()
            if len(payload) > PAYLOAD_MAX:
                payload = ""
            # The next look tells them, too.
            with suppress(psycopg.Error, StoreUnavailable):
                await self.run(partial(Database.notify, payload=payload))
            await asyncio.sleep(GAP_S)

    def _watch(self) -> None:
        """Have the loop say when something arrives while nothing runs."""
        database = self._database
        if self._watched is not None and self._watched[0] is not database:
            self._watched[1].close()
            self._watched = None
        if database is None or not self.is_listening:
            return
        if self._watched is None:
            try:
                self._watched = database, database.duplicate_socket()
            except (OSError, psycopg.Error):
                return
        asyncio.get_running_loop().add_reader(self._watched[1], self._receive)

    def _pause(self) -> None:
        if self._watched is not None:
            asyncio.get_running_loop().remove_reader(self._watched[1])

    def _receive(self) -> None:
        self._pause()
        self._receiving = asyncio.get_running_loop().create_task(self._take())

    async def _take(self) -> None:
        # A lost connection is noticed here as well, and the next look connects anew.
        with suppress(psycopg.Error, StoreUnavailable):
            await self.run(lambda _: None)

    def _notify_listener(self) -> None:
        arrived, self._arrived = self._arrived, []
        if not arrived:
            return
        try:
            sinks = [frozenset(msgspec.json.decode(each, type=list[str])) for each in arrived]
        except msgspec.DecodeError:
            # Too many to be named, or from someone else: every role may notify.
            self._heard(None)
        else:
            self._heard(frozenset().union(*sinks))
