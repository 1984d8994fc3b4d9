"""Debian's Chromium for tests of pages; a page's own faults fail the test that opened it."""

import re
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser as Chromium
from playwright.async_api import BrowserContext, ConsoleMessage, Page, async_playwright, expect

Theme = Literal["light", "dark"]

HEIGHT = 900
TIMEOUT_MS = 15_000
"""Deadline of a step in the browser; it takes milliseconds on an idle machine."""

_ARGUMENTS = [
    "--font-render-hinting=none",
    # For pictures that are the same each time.
    "--disable-partial-raster",
    # For another site, or a name that was bound to this machine later.
    "--host-resolver-rules=MAP *.test 127.0.0.1",
]

_AXE: dict[str, Any] = {
    "runOnly": ["wcag2a", "wcag2aa", "wcag21aa", "wcag22aa", "best-practice"],
    "resultTypes": ["violations", "incomplete"],
}

_RULES: dict[str, Any] = {
    "all": {},
    "contrast": {"runOnly": ["color-contrast"]},
    "without contrast": {"rules": {"color-contrast": {"enabled": False}}},
}

_CHECKED = """async (options) => {
    const { violations, incomplete } = await axe.run(options);
    return { violations, incomplete };
}"""

_SET_HIDDEN = """(hidden) => {
    Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
    document.dispatchEvent(new Event("visibilitychange"));
}"""


@dataclass(frozen=True)
class Login:
    """A relay's page, and cookies that open it."""

    origin: str
    cookies: Sequence[Any]


class Window:
    """Tabs that share cookies and storage, and the faults of their pages."""

    def __init__(self, context: BrowserContext) -> None:
        self.context = context
        self._faults: list[str] = []
        self._allowed: list[re.Pattern[str]] = []

    async def tab(self, url: str | None = None) -> Page:
        """Open another tab."""
        page = await self.context.new_page()
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self._faults.append(f"uncaught: {error}"))
        # These are the violations that a report listener would get, also with scripts off.
        debugger = await self.context.new_cdp_session(page)
        debugger.on("Audits.issueAdded", self._on_issue)
        await debugger.send("Audits.enable")
        if url is not None:
            await page.goto(url)
        return page

    def allow(self, pattern: str) -> None:
        """Expect faults that match, such as the status of a refused request."""
        self._allowed.append(re.compile(pattern))

    @property
    def faults(self) -> list[str]:
        """Errors on the console, uncaught exceptions and CSP violations that were not expected."""
        return [
            each
            for each in self._faults
            if not any(wanted.search(each) for wanted in self._allowed)
        ]

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self._faults.append(f"console: {message.text} ({message.location.get('url')})")

    def _on_issue(self, added: dict[str, Any]) -> None:
        issue = added["issue"]
        if issue["code"] == "ContentSecurityPolicyIssue":
            details = issue["details"]["contentSecurityPolicyIssueDetails"]
            self._faults.append(f"CSP: {details['violatedDirective']} {details}")


class Browser:
    """One running Chromium; every test opens a window of its own."""

    def __init__(self, chromium: Chromium) -> None:
        self._chromium = chromium

    @asynccontextmanager
    async def open(
        self,
        *,
        script: bool = True,
        theme: Theme = "light",
        width: int = 1280,
        login: Login | None = None,
    ) -> AsyncIterator[Window]:
        """Open a window, and fail at its end if a page had a fault.

        With a login, its tabs take paths in place of URLs.
        """
        context = await self._chromium.new_context(
            java_script_enabled=script,
            color_scheme=theme,
            viewport={"width": width, "height": HEIGHT},
            device_scale_factor=1,
            reduced_motion="reduce",
            locale="en-GB",
            timezone_id="Europe/Berlin",
            base_url=None if login is None else login.origin,
            # For proxies with a test's own certificate.
            ignore_https_errors=True,
        )
        await context.add_cookies([] if login is None else login.cookies)
        context.set_default_timeout(TIMEOUT_MS)
        window = Window(context)
        try:
            yield window
        finally:
            await context.close()
        assert not window.faults, "\n".join(window.faults)


@asynccontextmanager
async def launched() -> AsyncIterator[Browser]:
    """Start Chromium; skip where it is not installed.

    The headless shell, Playwright's own choice, is the same engine without the windows, tabs and
    profiles of a desktop around it, which take as much time as the pages.
    """
    program = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if program is None:
        pytest.skip("chromium is not installed")
    expect.set_options(timeout=TIMEOUT_MS)
    async with async_playwright() as playwright:
        chromium = await playwright.chromium.launch(executable_path=program, args=_ARGUMENTS)
        try:
            yield Browser(chromium)
        finally:
            await chromium.close()


_SCROLLING = """() => [...document.querySelectorAll(".scroll:has(> .stack)")]
    .filter((each) => each.scrollWidth > each.clientWidth).map((each) => each.ariaLabel)"""


async def see_live(page: Page) -> None:
    """Wait until a page has its stream; without one it shows nothing of it."""
    await expect(page.locator('[data-state="live"] [data-live-state]')).to_have_text("Live")


async def set_hidden(page: Page, *, hidden: bool) -> None:
    """Make a tab believe that it went to the background, or came back; headless tabs never do."""
    await page.evaluate(_SET_HIDDEN, hidden)


async def assert_accessible(
    page: Page, *, rules: Literal["all", "contrast", "without contrast"] = "all"
) -> None:
    """Fail on every finding of axe-core, and on contrast that it could not compute.

    Contrast takes half of the time, and is the same at every width.
    """
    # Defining it takes as long as checking a small page.
    if not await page.evaluate("'axe' in window"):
        await page.evaluate(Axe().axe_script)
    results = await page.evaluate(_CHECKED, _AXE | _RULES[rules])
    unclear = [each for each in results["incomplete"] if each["id"] == "color-contrast"]
    findings = _findings([*results["violations"], *unclear])
    assert not findings, "\n".join(findings)


async def assert_no_overflow(page: Page) -> None:
    """Fail if the page, or a table whose rows can become blocks, scrolls sideways."""
    assert await page.evaluate(_SCROLLING) == []
    wide = "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    needed, given = await page.evaluate(wide)
    assert needed <= given, f"{needed} px wide in {given}"


def _findings(rules: Sequence[dict[str, Any]]) -> list[str]:
    return [
        f"{rule['id']}: {' '.join(map(str, node['target']))} {node['html'][:120]}"
        for rule in rules
        for node in rule["nodes"]
    ]
