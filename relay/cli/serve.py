"""`relay serve`: runs the service until SIGTERM or SIGINT; SIGHUP reloads its config."""

import asyncio
import gc
import os
import socket
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import click
import uvloop

from relay import config
from relay.app.reload import warn
from relay.app.service import ProcessHooks, Service, unless
from relay.app.watchdog import HangTimer
from relay.cli.parameters import config_option
from relay.config import Config
from relay.core.clock import Clock, SystemClock
from relay.server import socket_activation, stop_signals
from relay.server.sd_notify import ServiceManager
from relay.server.socket_activation import Side
from relay.server.stop_signals import StopRequests
from relay.telemetry import log

GC_THRESHOLD = 10_000
"""High, because requests create few cycles: rarer collections halve the slowest responses."""

LOOKUP_THREADS = 32
"""Threads of libuv, which looks up names in half of them: a silent name server fills one for each
sink, and the others must find one free."""

START_STOP_S = 3.0
"""Time to close the store after a stop during the start; it withstands a kill at any moment."""


@click.command()
@config_option
def serve(path: Path | None) -> None:
    """Run the relay until SIGTERM or SIGINT, then drain; SIGHUP reloads its config.

    A second SIGTERM or SIGINT, at least a second later, cuts the sends off.
    Uses listening sockets that systemd passes, and reports its state to systemd.

    Exits 0 after a drain, 71 if it cannot listen on an address, 74 if the store's disk failed,
    75 if another relay holds the store, the disk is full or the database is away or only reads,
    78 for a faulty config, a store that it may not use or that a newer relay wrote, or an
    unusable socket, 70 for a bug, and 1 for any other failure.
    """
    # Objects created at the start live on: collections took a tenth of the start's time.
    gc.disable()
    clock = SystemClock()
    manager = ServiceManager.found(os.environ, pid=os.getpid(), clock=clock)
    with ExitStack() as closing:
        sockets = socket_activation.take(os.environ, pid=os.getpid())
        for inherited in sockets.values():
            closing.enter_context(inherited)
        loaded = config.load(path or config.default_path())
        log.configure(loaded.log)
        warn(loaded)
        # Read by libuv at the first lookup.
        os.environ.setdefault("UV_THREADPOOL_SIZE", str(LOOKUP_THREADS))
        uvloop.run(run(loaded, sockets, manager, clock=clock))


async def run(
    loaded: Config, sockets: Mapping[Side, socket.socket], manager: ServiceManager, *, clock: Clock
) -> None:
    """Open and run a service that the process's signals stop and reload."""
    stop, cut_off, reread = asyncio.Event(), asyncio.Event(), asyncio.Event()
    start = _Start(manager, stop)
    requests = StopRequests(clock, stop=start.stop, cut_off=cut_off.set)
    host = ProcessHooks(sockets=sockets, manager=manager, hang_timer=HangTimer())
    with stop_signals.following(asyncio.get_running_loop(), requests, reread=reread.set):
        service = await unless(stop, Service.open(loaded, clock=clock, host=host))
        if service is None:
            log.get().info("relay.stopped")
            return
        # Exclude the objects that live as long as the process from every collection.
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD)
        gc.enable()
        await service.run(stop, cut_off=cut_off, again=reread, ready=start.end)


class _Start:
    """The time until the relay is ready, in which a stop has nothing to drain."""

    def __init__(self, manager: ServiceManager, stop: asyncio.Event) -> None:
        self._manager = manager
        self._stop = stop
        # A thread may wait for a database, or migrate it in a transaction.
        self._ending = threading.Timer(START_STOP_S, _exit)
        self._ending.daemon = True
        self._is_over = False

    def end(self) -> None:
        self._is_over = True
        # From now on there is something to drain, also for a stop that came before.
        self._ending.cancel()
        self._manager.ready()

    def stop(self) -> None:
        self._stop.set()
        if not self._is_over:
            self._ending.start()


def _exit() -> None:
    log.drain()
    os._exit(0)
