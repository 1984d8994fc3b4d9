"""Reloads of the config, each adopted or refused as a whole.

A reload happens on request, and when a file behind one of the config's references changes.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from relay.admin.api.reload import RELOAD
from relay.admin.audit import Auditor
from relay.admin.services import Reading
from relay.config import Config, load, refresh
from relay.config.changes import Changes, changes, fixed
from relay.config.document import Marks, mark
from relay.core.clock import Clock
from relay.core.errors import ConfigError, Fault, RelayError, StoreBroken
from relay.server.sd_notify import ServiceManager
from relay.store.audit import Change
from relay.telemetry import log
from relay.telemetry.activity_stream import ActivityStream
from relay.telemetry.metrics import Metrics

POLL_INTERVAL_S = 1.0
"""A changed file is used once two polls in a row agree, because it may be half written."""


_ASKED = "asked for"
_CHANGED = "a file changed"
"""Reasons for a reload."""
_SIGNAL = "SIGHUP"


class Reloader:
    """Holds the config in use; reloads run one at a time, and a failed one changes nothing."""

    def __init__(
        self,
        config: Config,
        *,
        adopt: Callable[[Config, Changes], Awaitable[None]],
        metrics: Metrics,
        manager: ServiceManager,
        activity: ActivityStream,
        auditor: Auditor,
        clock: Clock,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        """`adopt` switches to a config as a whole, or raises and changes nothing."""
        self.config = config
        self._adopt = adopt
        self._metrics = metrics
        self._manager = manager
        self._activity = activity
        self._auditor = auditor
        self._environ = environ
        self._clock = clock
        self._log = log.get()
        self._turn = asyncio.Lock()
        self.last: Reading | None = None
        self._refused: dict[str, Reading] = {}
        self._seen: Marks = config.references
        self._tried: Marks = config.references

    @property
    def refused(self) -> Sequence[Reading]:
        """Refused reloads whose faults have not been fixed since, oldest first."""
        return sorted(self._refused.values(), key=lambda each: each.at_ms)

    async def reload(self) -> Changes:
        """Read the file again, and what it refers to.

        Raises ConfigError for a config that is refused, Stopping, and StoreError.
        """
        return await self._take(_ASKED, lambda: load(self.config.file, self._environ))

    async def run(self, requested: asyncio.Event) -> None:
        """Reload whenever `requested` is set, and watch the files, until cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_INTERVAL_S):
                    await requested.wait()
            if requested.is_set():
                requested.clear()
                await self._quietly(self.reload, via=_SIGNAL)
            else:
                await self._poll()

    async def _poll(self) -> None:
        seen = await asyncio.to_thread(_marks, tuple(self.config.references))
        settled, self._seen = seen == self._seen, seen
        if settled and seen != self._tried:
            # Set before the attempt, so that a refused file is tried and reported once.
            self._tried = seen
            # Not the document: an edit of it takes effect when its editor asks for a reload.
            again = partial(self._take, _CHANGED, lambda: refresh(self.config, self._environ))
            await self._quietly(again, via=_CHANGED)

    async def _quietly(self, act: Callable[[], Awaitable[Changes]], *, via: str) -> None:
        """Reload without a caller: the outcome goes to the audit record, the log and the metric."""
        try:
            async with self._auditor.recorded(Change(operation=RELOAD.name, via=via)) as entry:
                entry.result = (await act()).paths()
        except StoreBroken:
            raise
        except RelayError:
            pass
        except Exception as error:  # noqa: BLE001  a bug here must not end what works
            self._log.error("relay.bug", **log.describe(error))

    async def _take(self, reason: str, read: Callable[[], Config]) -> Changes:
        async with self._turn:
            with self._manager.reloading():
                return await self._try(reason, read)

    async def _try(self, reason: str, read: Callable[[], Config]) -> Changes:
        try:
            new = await asyncio.to_thread(read)
            _require_same(self.config, new)
            difference = changes(self.config, new)
            await self._adopt(new, difference)
        except Exception as error:
            self._refuse(reason, error)
            raise
        self._accept(reason, new, difference)
        return difference

    def _accept(self, reason: str, new: Config, difference: Changes) -> None:
        before, self.config = self.config, new
        self._seen = self._tried = new.references
        # Good files say nothing about a refused document.
        for mended in (reason, _CHANGED):
            self._refused.pop(mended, None)
        self.last = Reading(at_ms=self._clock.now_ms(), reason=reason, taken=True, faults=())
        self._metrics.process.reloaded(successful=not self._refused)
        warn(new, known=(*before.mistakes, *before.warnings))
        differences: Mapping[str, Any] = difference.paths()
        self._log.info("config.reloaded", reason=reason, file=str(new.file), **differences)
        self._activity.publish("reload", outcome="taken", reason=reason, **differences)

    def _refuse(self, reason: str, error: Exception) -> None:
        faults = _shown_faults(error)
        self.last = self._refused[reason] = Reading(
            at_ms=self._clock.now_ms(), reason=reason, taken=False, faults=faults
        )
        self._metrics.process.reloaded(successful=False)
        line: dict[str, Any] = {"reason": reason, "file": str(self.config.file)}
        cause: dict[str, Any] = {"message": next(iter(faults), None)}
        if isinstance(error, ConfigError):
            line |= {"count": len(faults), "advice": _ADVICE}
            cause = {"faults": faults}
        self._log.error("config.refused", **line, **cause)
        self._activity.publish("reload", outcome="refused", reason=reason, **cause)


def warn(config: Config, known: Collection[Fault] = ()) -> None:
    """Log the mistakes and warnings of a config that is used, but for those known already."""
    for mistake in config.mistakes:
        if mistake not in known:
            log.get().warning(
                "config.warning",
                key=mistake.path,
                reason=mistake.message,
                advice="the next release refuses this; relay check-config fails on it already",
            )
    for warning in config.warnings:
        if warning not in known:
            log.get().warning("config.warning", key=warning.path, reason=warning.message)


def _shown_faults(error: Exception) -> list[str]:
    """Return the part of the cause that may be shown."""
    if isinstance(error, ConfigError):
        # Keys only: a wrong value could be a secret in the wrong place.
        return [fault.path or "the file" for fault in error.faults]
    return [str(error)] if isinstance(error, RelayError) else []


def _require_same(old: Config, new: Config) -> None:
    """Raise ConfigError for a change that needs a restart."""
    if faults := fixed(old, new):
        raise ConfigError(str(new.file), faults)


def _marks(paths: Iterable[str]) -> Marks:
    return {path: mark(path) for path in paths}


_ADVICE = "the config in use stays; relay check-config lists the faults of the new one"
