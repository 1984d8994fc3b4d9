"""How fast the operator's page answers, and what an open page costs acknowledgements.

`python -m benchmarks.pages [EVENTS]` builds a store of EVENTS, by default a million, and reads each
view in turns with a bare Starlette page of as many bytes, and the audience also over ranges that
nobody has asked for yet; then it floods a relay in turns with and without a client that fetches
what an open page fetches.
"""

import contextlib
import json
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import mean, median, quantiles, stdev

import httpx
import uvloop

from benchmarks import load, million, requests, rig
from tests.ports import free_port

VIEWS = (
    "/",
    "/events",
    "/events?kind=lead.captured",
    "/events?before=100000",
    "/events?sink=crm&outcome=dead",
    "/events/500000",
    "/dead-letters",
    "/sinks",
    "/sinks/crm",
    "/audience",
    "/changes",
    "/config",
)
READS = 60
WARM_UP = 3
FETCHES_PER_S = 4
FETCHING_SHARE = 0.1
SECONDS = 2
TURNS = 15

_BY_SCRIPT = {"Relay-Fragment": "1"}


def main() -> None:
    events = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    print(rig.machine())
    with tempfile.TemporaryDirectory() as folder:
        _views(Path(folder), events)
    with tempfile.TemporaryDirectory() as folder:
        _beside(Path(folder))


def _views(folder: Path, events: int) -> None:
    url = f"http://127.0.0.1:{free_port()}/hook"
    relay = rig.Relay(folder, [rig.sink(name, "http", url=url) for name in ("crm", "archive")])
    uvloop.run(million.build(relay.database, events))
    rows: list[tuple[str, ...]] = [("view", "KB", "packed", "p50 ms", "ratio", "p99 ms", "ratio")]
    with relay.running() as running, _logged_in(running.admin_url) as page:
        rows += [_row(page, path, [path] * READS) for path in VIEWS]
        rows.append(_row(page, "/audience, new ranges", list(_ranges())))
    rig.table(rows)


def _ranges() -> Iterator[str]:
    """Yield ranges of about a month, each of which is asked for once, so that none is kept."""
    today = datetime.now(UTC).date()
    for number in range(READS):
        since = today - timedelta(days=million.DAYS - number % 8)
        yield f"/audience?since={since}&until={today - timedelta(days=number // 8)}"


def _row(page: httpx.Client, name: str, paths: list[str]) -> tuple[str, ...]:
    first = page.get(paths[0])
    if first.status_code != 200:
        return (name, "", "", f"answered {first.status_code}", "", "", "")
    size, packed = len(first.content), int(first.headers.get("content-length", 0))
    port = free_port()
    with rig.destination("page", port, str(size)), httpx.Client(trust_env=False) as client:
        bare_url = f"http://127.0.0.1:{port}/"
        for _ in range(WARM_UP):
            _time_ms(page, paths[0])
            _time_ms(client, bare_url)
        pairs = [(_time_ms(page, path), _time_ms(client, bare_url)) for path in paths]
    ours, bare = zip(*pairs, strict=True)
    p99, bare_p99 = quantiles(ours, n=100)[98], quantiles(bare, n=100)[98]
    return (
        name,
        f"{size / 1000:.1f}",
        f"{packed / 1000:.1f}",
        f"{median(ours):.1f}",
        f"{median(ours) / median(bare):.1f}",
        f"{p99:.1f}",
        f"{p99 / bare_p99:.1f}",
    )


def _time_ms(client: httpx.Client, url: str) -> float:
    started = time.perf_counter()
    client.get(url).raise_for_status()
    return (time.perf_counter() - started) * 1000


def _beside(folder: Path) -> None:
    relay = rig.Relay(folder, [rig.http_sink(free_port())])
    rates: dict[bool, list[float]] = {True: [], False: []}
    fetched = 0
    with relay.running() as running, _logged_in(running.admin_url) as client:
        for turn in range(TURNS):
            for is_open in (turn % 2 == 0, turn % 2 == 1):
                # Anew for each, because a signature is good for five minutes only.
                requests.write(folder / "requests", 20_000 * SECONDS)
                page = OpenPage(running.admin_url, client.cookies)
                with page.followed() if is_open else contextlib.nullcontext():
                    rate = load.flood(relay.listen, folder / "requests", seconds=SECONDS)
                rates[is_open].append(rate)
                fetched += page.fetched
    with_page, without = rates[True], rates[False]
    ratios = [ours / alone for ours, alone in zip(with_page, without, strict=True)]
    print(
        f"acknowledged per second: {median(without):.0f} without an open page, "
        f"{median(with_page):.0f} with one, {median(ratios):.3f} of it in {TURNS} turns "
        f"(mean {mean(ratios):.3f} +- {stdev(ratios) / TURNS**0.5:.3f}); "
        f"the page was fetched {fetched / TURNS / SECONDS:.1f} times a second"
    )


class OpenPage:
    """Follows the stream as a page does, and fetches the view when something changed."""

    def __init__(self, url: str, cookies: httpx.Cookies) -> None:
        self._client = httpx.Client(base_url=url, cookies=cookies, trust_env=False, timeout=60)
        self._is_closed = False
        self._error: Exception | None = None
        self.fetched = 0

    @contextlib.contextmanager
    def followed(self) -> Iterator[None]:
        """Follow it for the block; without a page that is fetched there is nothing to compare."""
        thread = threading.Thread(target=self._follow, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._is_closed = True
            self._client.close()
            thread.join(1)
        if self._error is not None or not self.fetched:
            sys.exit(f"the open page was not fetched: {self._error or 'its stream said nothing'}")

    def _follow(self) -> None:
        next_s = 0.0
        try:
            with self._client.stream("GET", "/live") as stream:
                for line in stream.iter_lines():
                    if line.startswith("data:") and json.loads(line[5:])["topics"]:
                        # From one begin to the next, as the page's script does.
                        time.sleep(max(0.0, next_s - time.monotonic()))
                        begun_s = time.monotonic()
                        self._client.get("/", headers=_BY_SCRIPT).raise_for_status()
                        took_s = time.monotonic() - begun_s
                        next_s = begun_s + max(1 / FETCHES_PER_S, took_s / FETCHING_SHARE)
                        self.fetched += 1
        except (httpx.HTTPError, OSError, RuntimeError) as error:
            if not self._is_closed:
                self._error = error


@contextlib.contextmanager
def _logged_in(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, headers={"Origin": url}, trust_env=False, timeout=30) as client:
        client.post("/login", data={"token": rig.TOKEN})
        yield client


if __name__ == "__main__":
    main()
