"""A page like the product's, for tests of its script: they change what it holds."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from urllib.parse import parse_qsl

import orjson
from starlette.requests import Request
from starlette.responses import (
    FileResponse,
    HTMLResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)

import relay.admin.page
from tests.admin.page.browser.served import Handler

SCRIPT = Path(relay.admin.page.__file__).parent / "assets" / "page.js"

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'; report-uri /reports"
)

_PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<link rel="icon" href="data:,"><script src="/page.js" defer></script></head>
<body data-live-url="/live" data-now="{now_ms}"{again}>
<header id="top" data-live=""><nav><a href="/" data-key="n">Now</a>
<a href="/other" data-key="o">Other <b id="count">{count}</b></a></nav>
<form role="search" action="/" data-filter><input aria-label="Find" name="q" value="{q}"
data-search autocomplete="off"><button>Find</button></form>
<button type="button" data-live-state hidden>Live</button>
</header><main id="main" tabindex="-1" data-topics="events sinks">{notice}<h1>{title}</h1>{main}
<table><tbody id="rows" data-hold="{hold}"{range}>{rows}</tbody></table>
<button type="button" data-held="rows" hidden></button><p data-held-said></p>
<form method="post" action="/act" data-action><input type="hidden" name="token" value="{token}">
<button name="do" value="pause">Pause crm</button></form></main>
<p data-standing hidden><b role="status"></b> <span></span></p>
<dialog id="keys" aria-label="Keys"><label><input type="checkbox" data-keys-off>Keys off</label>
<form method="dialog"><button>Close</button></form></dialog></body></html>"""

_ROW = """<tr id="row-{0}" data-row><td><input type="checkbox" id="tick-{0}" aria-label="Tick {0}">
<td><a href="/other?row={0}">Event {0}</a><td id="state-{0}">{1}<td><details id="more-{0}"
data-keep="open"><summary>More {0}</summary>Words of {0}</details></tr>
"""


@dataclass
class FixturePage:
    """What the page holds, and what was asked of it."""

    rows: list[int] = field(default_factory=lambda: [3, 2, 1])
    state: str = "pending"
    main: str = ""
    notice: str = ""
    """Shown once."""
    hold: str = ""
    newer: int = 0
    """Rows on no page yet, which only a refresh that holds its rows is told of."""
    is_over: bool = False
    accepted: int = 0
    token: str = "first"
    is_logged_in: bool = True
    failures: int = 0
    """Refreshes yet to fail."""
    counts: int = 0
    started_ms: int = 1_750_000_000_000
    now_ms: int | None = None
    again_ms: int | None = None
    """Given once."""
    answer: asyncio.Event = field(default_factory=asyncio.Event)
    """Cleared, posts wait."""
    fetched_s: list[float] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0
    posts: list[dict[str, str]] = field(default_factory=list)
    fragments: list[str] = field(default_factory=list)
    held: list[str | None] = field(default_factory=list)
    """What each refresh said that it holds."""
    reports: list[bytes] = field(default_factory=list)
    streams: int = 0
    _topics: tuple[str, ...] = ()
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    def __post_init__(self) -> None:
        self.answer.set()

    @property
    def handlers(self) -> dict[str, Handler]:
        return {
            "/": self._show,
            "/other": self._show,
            "/act": self._act,
            "/live": self._live,
            "/reports": self._report,
            "/page.js": self._script,
        }

    async def change(self, *topics: str) -> None:
        """Tell open pages of a change."""
        self._topics = topics or ("events",)
        async with self._changed:
            self.counts += 1
            self._changed.notify_all()

    async def _script(self, _: Request) -> Response:
        return FileResponse(SCRIPT, media_type="text/javascript")

    async def _report(self, request: Request) -> Response:
        self.reports.append(await request.body())
        return Response(status_code=204)

    async def _show(self, request: Request) -> Response:
        if not self.is_logged_in:
            return HTMLResponse("<!doctype html><title>Log in</title>", 401)
        if self.failures:
            self.failures -= 1
            return HTMLResponse("<!doctype html><title>Error</title><main id=main>Error", 503)
        if request.headers.get("relay-fragment"):
            self.fetched_s.append(time.monotonic())
            self.held.append(request.headers.get("relay-held"))
            self.fragments.append(str(request.url).removeprefix(str(request.base_url)))
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            await asyncio.sleep(0)
            self.at_once -= 1
        path, query = request.url.path, request.query_params.get("q", "")
        return self._page(path, query, request.headers.get("relay-held"))

    async def _act(self, request: Request) -> Response:
        if not self.is_logged_in:
            return HTMLResponse("<!doctype html><title>Log in</title>", 401)
        self.posts.append(dict(parse_qsl((await request.body()).decode())))
        await self.answer.wait()
        self.state = "paused"
        self.token = "second"
        self.notice = "crm is paused."
        return RedirectResponse("/?done=1", 303)

    async def _live(self, _: Request) -> Response:
        if not self.is_logged_in:
            return Response(status_code=401)
        return StreamingResponse(self._messages(), media_type="text/event-stream")

    async def _messages(self) -> AsyncIterator[bytes]:
        self.streams += 1
        try:
            hello = {"started_ms": self.started_ms, "version": "1", **self._said()}
            yield b"retry: 100\ndata: " + orjson.dumps(hello) + b"\n\n"
            while True:
                seen = self.counts
                async with self._changed:
                    # It also wakes where another waiter was cancelled.
                    while self.counts == seen:
                        await self._changed.wait()
                yield b"data: " + orjson.dumps(self._said(*self._topics)) + b"\n\n"
        finally:
            self.streams -= 1

    def _said(self, *topics: str) -> dict[str, object]:
        return {"topics": topics, "counts": {}, "accepted": self.accepted}

    def _take_notice(self) -> str:
        notice, self.notice = self.notice, ""
        return notice and f'<p id="notice" role="status">{notice}</p>'

    def _take_again(self) -> str:
        again_ms, self.again_ms = self.again_ms, None
        return "" if again_ms is None else f' data-again-ms="{again_ms}"'

    def _page(self, path: str, q: str, held: str | None) -> Response:
        span = held.removeprefix("rows=") if held else f"{max(self.rows, default=0)}-0"
        newest = int(span.partition("-")[0])
        shown = [row for row in self.rows if row <= newest]
        newer = len(self.rows) - len(shown) + (self.newer if held else 0)
        marks = f' data-range="{span}" data-newer="{newer}"{" data-over" if self.is_over else ""}'
        now_ms = time.time_ns() // 1_000_000 if self.now_ms is None else self.now_ms
        text = _PAGE.format(
            title="Events" if path == "/" else "Other",
            now_ms=now_ms,
            again=self._take_again(),
            count=self.counts,
            q=escape(q),
            main=self.main,
            notice=self._take_notice(),
            hold=self.hold,
            token=self.token,
            range=marks,
            rows="".join(_ROW.format(row, self.state) for row in shown),
        )
        headers = {"Content-Security-Policy": POLICY, "Cache-Control": "no-store"}
        return HTMLResponse(text, 200, headers)
