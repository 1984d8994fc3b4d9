"""How fast the operator's page answers, and what an open page costs acknowledgements.

`python -m benchmarks.pages [EVENTS]` builds a store of EVENTS, by default a million, and reads each
view in turns with a bare Starlette page of as many bytes; then it floods a relay in turns with and
without a client that fetches what an open page fetches.
"""

import contextlib
import json
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, median, quantiles, stdev

import httpx
import uvloop

from benchmarks import load, million, requests, rig

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
SECONDS = 2
TURNS = 15


def main() -> None:
    events = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    print(rig.machine())
    with tempfile.TemporaryDirectory() as folder:
        _views(Path(folder), events)
    with tempfile.TemporaryDirectory() as folder:
        _beside(Path(folder))


def _views(folder: Path, events: int) -> None:
    url = f"http://127.0.0.1:{rig.free_port()}/hook"
    relay = rig.Relay(folder, [rig.sink(name, "http", url=url) for name in ("crm", "archive")])
    uvloop.run(million.build(relay.database, events))
    rows: list[tuple[str, ...]] = [("view", "KB", "packed", "p50 ms", "ratio", "p99 ms", "ratio")]
    with relay.running() as running, _logged_in(running.admin_url) as page:
        rows += [_row(page, path) for path in VIEWS]
    rig.table(rows)


def _row(page: httpx.Client, path: str) -> tuple[str, ...]:
    first = page.get(path)
    if first.status_code != 200:
        return (path, "", "", f"answered {first.status_code}", "", "", "")
    size, packed = len(first.content), int(first.headers.get("content-length", 0))
    port = rig.free_port()
    with rig.far_end("page", port, str(size)), httpx.Client(trust_env=False) as client:
        bare_url = f"http://127.0.0.1:{port}/"
        for _ in range(WARM_UP):
            _time_ms(page, path)
            _time_ms(client, bare_url)
        pairs = [(_time_ms(page, path), _time_ms(client, bare_url)) for _ in range(READS)]
    ours, bare = zip(*pairs, strict=True)
    p99, bare_p99 = quantiles(ours, n=100)[98], quantiles(bare, n=100)[98]
    return (
        path,
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
    relay = rig.Relay(folder, [rig.http_sink(rig.free_port())])
    rates: dict[bool, list[float]] = {True: [], False: []}
    with relay.running() as running, _logged_in(running.admin_url) as client:
        for turn in range(TURNS):
            for is_open in (turn % 2 == 0, turn % 2 == 1):
                page = _open_page(running.admin_url, client.cookies)
                with page if is_open else contextlib.nullcontext():
                    rates[is_open].append(_flood(relay, folder / "requests"))
    with_page, without = rates[True], rates[False]
    ratios = [ours / alone for ours, alone in zip(with_page, without, strict=True)]
    print(
        f"acknowledged per second: {median(without):.0f} without an open page, "
        f"{median(with_page):.0f} with one, {median(ratios):.3f} of it in {TURNS} turns "
        f"(mean {mean(ratios):.3f} +- {stdev(ratios) / TURNS**0.5:.3f})"
    )


def _flood(relay: rig.Relay, file: Path) -> float:
    # Anew for each, because a signature is good for five minutes only.
    requests.write(file, 20_000 * SECONDS)
    return load.flood(relay.listen, file, seconds=SECONDS)


@contextlib.contextmanager
def _open_page(url: str, cookies: httpx.Cookies) -> Iterator[None]:
    """Follow the stream as a page does, and fetch the view when something changed."""
    client = httpx.Client(base_url=url, cookies=cookies, trust_env=False, timeout=60)
    stopped = threading.Event()

    def follow() -> None:
        try:
            with client.stream("GET", "/live") as stream:
                for line in stream.iter_lines():
                    if line.startswith("data:") and json.loads(line[5:])["topics"]:
                        client.get("/", headers={"Relay-Fragment": "1"}).raise_for_status()
                        time.sleep(1 / FETCHES_PER_S)
        except (httpx.HTTPError, OSError, RuntimeError):
            if not stopped.is_set():
                raise

    threading.Thread(target=follow, daemon=True).start()
    try:
        yield
    finally:
        stopped.set()
        client.close()


@contextlib.contextmanager
def _logged_in(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, headers={"Origin": url}, trust_env=False, timeout=30) as client:
        client.post("/login", data={"token": rig.TOKEN})
        yield client


if __name__ == "__main__":
    main()
