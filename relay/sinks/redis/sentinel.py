"""Redis by Sentinel: a client of whichever server is the master, and the replicas that confirm.

A master confirms before its replicas have an entry, and a failover makes one of them the master:
what only the old one had is lost. So an entry counts as delivered once all replicas that the
Sentinels call healthy have it. They go on counting the one that is being promoted, which the old
master no longer sees.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import SplitResult, unquote

import msgspec
from redis.asyncio import Redis
from redis.asyncio.sentinel import MasterNotFoundError, Sentinel
from redis.exceptions import RedisError, ResponseError

from relay.core.clock import Clock
from relay.core.config_values import Address, Secret
from relay.core.errors import Misconfigured, SinkError, Temporary
from relay.sinks.redis.errors import classify, code

WAIT_SHARE = 0.5
"""Share of a request's time in which the replicas have to confirm."""
ASK_EVERY_S = 10.0
"""Pause between two looks at the replicas; Sentinels themselves look as often."""

_ABSENT = "no Sentinel answers, or none knows a master of this name that is up"


class SentinelSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[sink.sentinel]`; the host in the sink's `url` is the name of the master."""

    hosts: tuple[Address, ...]
    username: Secret | None = None
    password: Secret | None = None
    """Of the Sentinels; the one in `url` is that of the servers."""


class MasterClient(Redis):
    """A client of the master, which closes the Sentinels' connections with its own."""

    sentinels: Sentinel
    master: str

    async def aclose(self, *args: Any) -> None:
        await super().aclose(*args)
        await self.sentinels.aclose()


class Way(NamedTuple):
    """How the Sentinels and the master that they name are reached."""

    url: SplitResult
    settings: SentinelSettings
    timeout_s: float
    options: Mapping[str, Any]
    """Of every connection."""

    def connect(self) -> MasterClient:
        """Return a client without a connection."""
        hosts = self.settings.hosts
        user, password = self.settings.username, self.settings.password
        # One that does not answer leaves time for the others and the master.
        share_s = self.timeout_s / (len(hosts) + 1)
        sentinels = Sentinel(  # type: ignore[no-untyped-call]
            [(address.host, address.port) for address in hosts],
            sentinel_kwargs={
                **self.options,
                "username": user and user.reveal(),
                "password": password and password.reveal(),
                "socket_timeout": share_s,
                "socket_connect_timeout": share_s,
            },
            **self.options,
            username=unquote(self.url.username or "") or None,
            password=unquote(self.url.password or "") or None,
            db=int(self.url.path.strip("/") or 0),
        )
        name = master_name(self.url)
        client: MasterClient = sentinels.master_for(name, MasterClient)
        client.sentinels, client.master = sentinels, name
        return client


def master_name(url: SplitResult) -> str:
    """Return the master's name as it is written; `hostname` would be in lower case."""
    return unquote(url.netloc.rpartition("@")[2])


def check_url(url: SplitResult) -> None:
    """Raise ValueError for an address where the name of a master is expected."""
    if re.search(r":|^\[", url.netloc.rpartition("@")[2]):
        raise ValueError("url: expected the master's name as the host, and no port: see sentinel")


class Replicas:
    """How many replicas have to confirm entries on one connection to the master."""

    def __init__(self, clock: Clock, timeout_s: float) -> None:
        self._clock = clock
        self.wait_ms = max(1, round(timeout_s * WAIT_SHARE * 1000))
        self._expected: int | None = None
        self._asked_s = 0.0

    async def expected(self, client: MasterClient) -> int:
        """Return the number; while no Sentinel answers, the last one known counts."""
        now_s, expected = self._clock.monotonic(), self._expected
        if expected is None or now_s >= self._asked_s + ASK_EVERY_S:
            self._asked_s = now_s
            with suppress(*(() if expected is None else (MasterNotFoundError,))):
                self._expected = expected = await healthy(client)
        return expected or 0

    def forget(self) -> None:
        """Ask the Sentinels anew, with the next connection."""
        self._expected = None

    def lack(self, reply: object) -> Exception | None:
        """Return why the reply to WAIT does not confirm the entries before it."""
        if isinstance(reply, Exception):
            return _meaning_of_wait(reply)
        if not isinstance(reply, int) or reply < (self._expected or 0):
            return Temporary(f"fewer than {self._expected} replicas have confirmed in time")
        return None


async def check(client: MasterClient) -> str:
    """Ask what a send needs beside XADD; return how many replicas have to confirm now."""
    number = await healthy(client)
    try:
        await client.wait(0, 1)
    except ResponseError as error:
        raise _meaning_of_wait(error) from None
    return f"{number} of its replicas have to confirm each entry"


def _meaning_of_wait(error: Exception) -> Exception:
    if code(error) == "NOPERM":
        return Misconfigured("NOPERM: the user may not WAIT for the replicas")
    return classify(error)


async def healthy(client: MasterClient) -> int:
    """Count the replicas that a Sentinel calls healthy and connected to their master."""
    for sentinel in client.sentinels.sentinels:
        try:
            replicas = await sentinel.sentinel_slaves(client.master)
        except RedisError:
            continue
        return sum(map(_is_healthy, replicas))
    raise MasterNotFoundError


def _is_healthy(replica: Mapping[str, Any]) -> bool:
    is_down = replica["is_sdown"] or replica["is_odown"] or replica["is_disconnected"]
    return not is_down and replica.get("master-link-status") == "ok"


async def why_no_master(client: MasterClient) -> SinkError:
    """Ask each Sentinel again, because the library's error says little."""
    is_known = has_answered = False
    for sentinel in client.sentinels.sentinels:
        try:
            masters = await sentinel.sentinel_masters()
        except RedisError as error:
            failure = classify(error)
            if isinstance(failure, Misconfigured):
                return Misconfigured(f"a Sentinel: {failure.reason}")
            continue
        has_answered = True
        is_known = is_known or client.master in masters
    if has_answered and not is_known:
        return Misconfigured("the Sentinels know no master of the name that is the host in url")
    return Temporary(_ABSENT)
