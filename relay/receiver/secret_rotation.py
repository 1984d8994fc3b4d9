"""Secret rotations: requests that match no secret are quarantined until the new one is configured.

The video service's old secret ends the moment the new one is shown, so no operator can have both in
the config in time (delivery.md, section 3). Without a rotation nothing is quarantined.
"""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial

import msgspec

from relay.core.authentication import Authenticated, Headers, SourceSettings, reverify, unverified
from relay.core.clock import Clock
from relay.core.config_values import Duration
from relay.core.delivery_rules import GIVE_UP_S
from relay.core.errors import Rejected, StoreError, StoreUnavailable
from relay.core.large_bodies import BodyWorker
from relay.receiver.intake import Intake
from relay.store.quarantine import Kept, Quarantine, Rotation
from relay.telemetry import log
from relay.telemetry.metrics import Metrics

AFTERWARDS = Duration(GIVE_UP_S * 1000)
"""Time from a rotation's end until quarantined requests expire; the sender has given up by then."""

KEEP_WITHIN_S = 4.0
"""Time limit of a write; the sender waits 10 s, and reading the body may have taken half of it."""

POLL_INTERVAL_S = 5.0
STORE_RETRY_S = 1.0
BATCH_MAX = 32
"""Requests verified at once; they share a commit, and other work runs in between."""

PAUSE_S = 0.02
"""Pause between two steps of a removal, so that acknowledgements find the writer free."""


COUNT_MAX = 50_000
"""Fifteen minutes of ten events a second, each tried five times in that time."""

BYTES_MAX = 64 << 20
"""This many of the usual size; a quarter of the room that `min_free` keeps by default."""

RATE_MAX = 200
"""Requests per second, and the largest burst; leaves most of the disk's rate to other work."""


class QuarantineBudget(msgspec.Struct):
    """A rotation's figures in memory, so that refusing a request needs no query."""

    until_ms: int = 0
    expires_ms: int = 0
    count: int = 0
    bytes: int = 0
    allowance: float = RATE_MAX
    at_s: float = 0.0
    dropped: int = 0
    under_way: int = 0
    """Writes that the store's own figures may not include yet."""

    def excess(self, size: int, now_s: float) -> str | None:
        """Count a request, or return the limit that it would exceed."""
        self.allowance = min(RATE_MAX, self.allowance + (now_s - self.at_s) * RATE_MAX)
        self.at_s = now_s
        if self.count >= COUNT_MAX:
            return "count"
        if self.bytes + size > BYTES_MAX:
            return "bytes"
        if self.allowance < 1:
            return "rate"
        self.allowance -= 1
        self.count += 1
        self.bytes += size
        return None


class SecretRotations:
    """All rotations that have begun and have not expired."""

    def __init__(
        self,
        quarantine: Quarantine,
        sources: Iterable[SourceSettings],
        *,
        intake: Intake,
        worker: BodyWorker,
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        self._quarantine = quarantine
        self._intake = intake
        self._worker = worker
        self._metrics = metrics
        self._clock = clock
        self._sources = {source.name: source for source in sources}
        self._held: dict[str, QuarantineBudget] = {}
        self._behind: set[str] = set()
        """Sources with requests that another relay quarantined during the last verification."""
        self._wakeup = asyncio.Event()
        self._turn = asyncio.Lock()
        self._log = log.get()
        self._sampled = log.Sampled(clock)

    async def load(self) -> None:
        """Take over the rotations of before a restart, or of another relay; raises StoreError."""
        for rotation in await self._quarantine.rotations():
            self._hold(rotation)
        self._wakeup.set()

    def adopt(self, sources: Iterable[SourceSettings]) -> None:
        """Verify quarantined requests again, with these sources' secrets."""
        self._sources = {source.name: source for source in sources}
        self._wakeup.set()

    async def quarantine(
        self, source: SourceSettings, headers: Headers, body: bytes, now_ms: int
    ) -> None:
        """Quarantine a request that matches no secret, if a rotation is on and there is room."""
        held = self._held.get(source.name)
        if held is None or now_ms >= held.until_ms:
            return
        request = unverified(source, headers, body, now_ms=now_ms)
        if request is None:
            return
        excess = held.excess(request.size, self._clock.monotonic())
        if excess is None:
            held.under_way += 1
            try:
                async with asyncio.timeout(KEEP_WITHIN_S):
                    await self._quarantine.keep(request)
            except (StoreError, TimeoutError):
                excess = "store"
            finally:
                held.under_way -= 1
        if excess is not None:
            held.dropped += 1
            self._metrics.not_kept(source.name, excess)
            self._sampled.line("rotation.not_kept", reason=excess, source=source.name)
            return
        self._metrics.quarantined(source.name, held.count)
        if source is not self._sources.get(source.name):
            # It arrived before the secrets changed, and the others have been verified since.
            self._wakeup.set()

    def dropped(self, name: str) -> int:
        """Number of requests dropped since the relay's start, because of a limit."""
        held = self._held.get(name)
        return 0 if held is None else held.dropped

    async def begin(self, name: str, duration: Duration) -> Rotation:
        """Begin or prolong a source's rotation; raises StoreError."""
        now_ms = self._clock.now_ms()
        until_ms = now_ms + duration
        async with self._turn:
            rotation = await self._quarantine.begin(
                name, now_ms=now_ms, until_ms=until_ms, expires_ms=until_ms + AFTERWARDS
            )
            self._hold(rotation)
        self._log.info("rotation.begun", source=name, seconds=duration.seconds)
        self._wakeup.set()
        return rotation

    async def finish(self, name: str) -> Rotation | None:
        """Verify with the secrets in use and stop quarantining; None where none was begun.

        Raises StoreError.
        """
        async with self._turn:
            begun = await self._quarantine.rotation(name)
            if begun is None:
                return None
            held = self._held.get(name) or self._hold(begun)
            now_ms = self._clock.now_ms()
            held.until_ms = min(held.until_ms, now_ms)
            # Queued behind the writes under way, so that all of them are verified.
            await self._quarantine.disarm(name, now_ms=now_ms)
            await self._reverify(name)
            rotation = await self._refresh(name)
        if rotation is not None:
            self._log.info("rotation.finished", source=name, pending=rotation.waiting)
        return rotation

    async def run(self) -> None:
        """Verify again when secrets change, and remove expired requests; raises StoreBroken."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_INTERVAL_S):
                    await self._wakeup.wait()
            try:
                await self._poll()
            except StoreUnavailable as error:
                self._sampled.line("store.unavailable", reason=str(error))
                self._wakeup.set()
                await asyncio.sleep(STORE_RETRY_S)

    async def _poll(self) -> None:
        async with self._turn:
            changed = self._wakeup.is_set()
            self._wakeup.clear()
            # Another relay of the same store may have begun one, quarantined more, or ended one.
            begun = {each.source: each for each in await self._quarantine.rotations()}
            for name in self._held.keys() - begun.keys():
                self._drop(name)
            for name, rotation in begun.items():
                held = self._held.get(name)
                is_more = held is None or rotation.waiting > held.count or name in self._behind
                self._behind.discard(name)
                left = await self._reverify(name) if changed or is_more else None
                if self._clock.now_ms() >= rotation.expires_ms:
                    await self._expire(name)
                    continue
                now = await self._refresh(name)
                if left is not None and now is not None and now.waiting > left:
                    self._behind.add(name)

    async def _reverify(self, name: str) -> int | None:
        """Return how many requests still fail; None for a source that the config lacks."""
        source, after, left, verified = self._sources.get(name), 0, 0, 0
        if source is None:
            return None
        # Requests that come meanwhile are verified with the new secrets before their quarantine.
        rotation = await self._quarantine.rotation(name)
        ahead = 0 if rotation is None else rotation.waiting
        while ahead > 0 and (
            batch := await self._quarantine.waiting(name, after=after, limit=min(BATCH_MAX, ahead))
        ):
            after, ahead = batch[-1].number, ahead - len(batch)
            good = await self._admit_good(source, batch)
            verified, left = verified + good, left + len(batch) - good
            await asyncio.sleep(0)
        if verified:
            self._log.info("rotation.verified", source=name, count=verified)
        return left

    async def _admit_good(self, source: SourceSettings, batch: Sequence[Kept]) -> int:
        size = sum(request.size for _, request in batch)
        good = await self._worker.run(size, partial(_verified, source, batch))
        if good:
            # After a crash in between, these are duplicates when they are verified again.
            outcomes = await asyncio.gather(*(self._intake.admit(each) for each in good.values()))
            known = sum(outcome in {"duplicate", "conflict"} for outcome in outcomes)
            await self._quarantine.release(source.name, list(good), duplicates=known)
        return len(good)

    async def _expire(self, name: str) -> None:
        rotation = await self._quarantine.rotation(name)
        more = True
        while more:
            more = await self._quarantine.expire(name)
            await asyncio.sleep(PAUSE_S)
        self._drop(name)
        count = 0 if rotation is None else rotation.waiting
        self._log.info("rotation.expired", source=name, count=count)

    async def _refresh(self, name: str) -> Rotation | None:
        held = self._held.get(name)
        before = None if held is None else (held.under_way, held.count)
        rotation = await self._quarantine.rotation(name)
        if rotation is not None and (held is None or before == (0, held.count)):
            self._hold(rotation)
        return rotation

    def _drop(self, name: str) -> None:
        self._held.pop(name, None)
        self._metrics.quarantined(name, 0)

    def _hold(self, rotation: Rotation) -> QuarantineBudget:
        name = rotation.source
        held = self._held.setdefault(name, QuarantineBudget(at_s=self._clock.monotonic()))
        held.until_ms, held.expires_ms = rotation.until_ms, rotation.expires_ms
        held.count, held.bytes = rotation.waiting, rotation.bytes
        self._metrics.quarantined(name, rotation.waiting)
        return held


def _verified(source: SourceSettings, batch: Iterable[Kept]) -> dict[int, Authenticated]:
    """Return the requests that match a secret by now, by their numbers."""
    good = {}
    for number, request in batch:
        with suppress(Rejected):
            good[number] = reverify(source, request)
    return good
