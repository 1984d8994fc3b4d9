"""The real `relay serve` in a process of its own: started, waited for, killed, stopped."""

import asyncio
import os
import signal
import ssl
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import httpx
import orjson
from prometheus_client.parser import text_string_to_metric_families

from tests.guarantees import warm
from tests.ports import free_port

DEADLINE_S = 90.0
"""Long, because the machine may be busy; whoever waits goes on at once when the fact is there."""

SECRET = "whsec_guarantees_0123456789"


_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Nothing here speaks TLS, and loading the system's CAs takes longer than a request does."""


async def until(
    fact: Callable[[], bool | Awaitable[bool]], *, what: str, deadline_s: float = DEADLINE_S
) -> None:
    """Wait for a condition; fails with `what` after the deadline."""
    try:
        async with asyncio.timeout(deadline_s):
            while True:
                known = fact()
                if known if isinstance(known, bool) else await known:
                    return
                # To ask a process takes a hundred times as long as to look.
                await asyncio.sleep(0.02 if isinstance(known, bool) else 0.05)
    except TimeoutError:
        raise AssertionError(f"not within {deadline_s:g} s: {what}") from None


def http_client(**options: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(trust_env=False, verify=_NO_TLS, timeout=DEADLINE_S, **options)


class Relay:
    """One relay on a config in `folder`; it keeps its ports and its store over restarts."""

    def __init__(
        self,
        folder: Path,
        *,
        sinks: str,
        server: str = "",
        store: str = 'min_free = "0B"',
        rest: str = "",
        secret: str = SECRET,
        data: Path | None = None,
        prefix: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
        handed: Sequence[int] = (),
    ) -> None:
        """`sinks` and `rest` are TOML tables; `prefix` stands before the command.

        A `store` with a `type` is the whole table, else it is beside the file's path.
        It gets the sockets in `handed` as systemd hands them over.
        """
        self.port, self.admin_port = free_port(), free_port()
        self.store = (data or folder / "data") / "relay.db"
        self.log = folder / "relay.log"
        self._prefix = prefix
        self._handed = handed
        self._environ = {**os.environ, "PYTHONWARNINGS": "default", **(environ or {})}
        self._is_warm = not prefix and warm.suits(environ or {})
        assert self._is_warm or not handed
        self._process: asyncio.subprocess.Process | warm.WarmProcess | None = None
        self.config = folder / "config.toml"
        place = "" if store.startswith("type") else f'path = "{self.store}"\n'
        self.config.write_text(
            f'[server]\nlisten = "127.0.0.1:{self.port}"\n'
            f'admin_listen = "127.0.0.1:{self.admin_port}"\n{server}\n'
            f"[store]\n{place}{store}\n"
            f'[[source]]\nname = "main"\npath = "/webhooks"\nsecrets = ["{secret}"]\n'
            f"{rest}\n{sinks}\n",
            encoding="utf-8",
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.running:
            await self.kill()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/webhooks"

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self.admin_port}"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def spawn(self) -> None:
        """Start the process and do not wait for anything."""
        assert not self.running
        command = ("serve", "--config", str(self.config))
        with self.log.open("ab") as log:
            if self._is_warm:
                self._process = await warm.start(
                    *command, environ=self._environ, output=log, handed=self._handed
                )
                return
            self._process = await asyncio.create_subprocess_exec(
                *self._prefix,
                *(sys.executable, "-m", "tests.loop_watch", *command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environ,
            )

    async def start(self) -> None:
        """Start the process and wait until it is ready."""
        await self.spawn()
        await until(self.is_ready, what=f"/readyz\n{self.output()}")

    async def is_ready(self) -> bool:
        assert self.running, f"the relay has ended with {self.returncode}:\n{self.output()}"
        answer = await self.ask("/readyz")
        return answer is not None and answer.status_code == httpx.codes.OK

    async def ask(self, path: str) -> httpx.Response | None:
        """Get a path of the admin listener; None where nobody answers."""
        async with http_client() as client:
            try:
                return await client.get(self.admin_url + path)
            except httpx.TransportError:
                return None

    async def problems(self) -> list[str]:
        """What /readyz says is wrong."""
        answer = await self.ask("/readyz")
        return [] if answer is None else list(answer.json().get("problems", []))

    async def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric over all its series that have these labels."""
        answer = await self.ask("/metrics")
        assert answer is not None, f"the relay does not answer:\n{self.output()}"
        # Parsing all lines takes longer than the request.
        text = "".join(f"{line}\n" for line in answer.text.splitlines() if line.startswith(name))
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def kill(self) -> None:
        self.signal(signal.SIGKILL)
        await self.exit()

    async def stop(self) -> int:
        """Ask it to drain, and return its exit code."""
        self.signal(signal.SIGTERM)
        return await self.exit()

    async def exit(self, *, deadline_s: float = DEADLINE_S) -> int:
        """Wait for the process to end by itself; return its exit code."""
        assert self._process is not None
        try:
            async with asyncio.timeout(deadline_s):
                return await self._process.wait()
        except TimeoutError:
            raise AssertionError(f"the relay still runs:\n{self.output()}") from None

    @property
    def returncode(self) -> int | None:
        return None if self._process is None else self._process.returncode

    def output(self, *, last: int = 4000) -> str:
        """The end of what the process has written to stdout and stderr."""
        text = self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""
        return text[-last:]

    def lines(self, event: str) -> list[dict[str, object]]:
        """All log lines of one event."""
        raw = self.log.read_bytes().splitlines() if self.log.exists() else []
        parsed = [orjson.loads(line) for line in raw if line.startswith(b"{")]
        return [line for line in parsed if line.get("event") == event]
