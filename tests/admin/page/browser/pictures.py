"""Pictures of the views for docs/console.md: `python -m tests.admin.page.browser.pictures`."""

import asyncio
import tempfile
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

from playwright.async_api import Page, expect

from tests.admin.page.browser import HEIGHT, Browser, Login, Theme, launched
from tests.admin.page.browser.day import played
from tests.admin.page.browser.entering import login_of
from tests.admin.page.browser.views import VIEWS

FOLDER = Path(__file__).parents[4] / "docs" / "images"
WIDTH = 1280
HEIGHT_MAX = 1600

PICTURES: Mapping[str, str] = {
    "now": "now",
    "events": "events",
    "event": "event",
    "dead-letters": "dead letters",
    "sink": "sink, parked",
    "people": "person",
    "audience": "audience",
    "changes": "changes",
    "config": "config",
}
"""Views by the names of their files."""


async def main() -> None:
    """Play a week, and take a picture of each view in each theme."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="relay-") as folder:
        async with launched() as browser, played(Path(folder)) as relay:
            login = await login_of(relay)
            for theme in get_args(Theme):
                await _take(browser, login, theme)


async def _take(browser: Browser, login: Login, theme: Theme) -> None:
    async with browser.open(theme=theme, width=WIDTH, login=login) as window:
        tab = await window.tab()
        for name, view in PICTURES.items():
            await VIEWS[view](tab)
            await _keep(tab, FOLDER / f"console-{name}-{theme}.png")


async def _keep(tab: Page, file: Path) -> None:
    """Save a picture of the page, cut where it gets too high."""
    await tab.set_viewport_size({"width": WIDTH, "height": HEIGHT})
    if await tab.locator("body[data-live-url]").count():
        await expect(tab.locator("[data-live-state]")).to_have_text("Live")
    height = await tab.evaluate("document.documentElement.scrollHeight")
    await tab.set_viewport_size({"width": WIDTH, "height": min(height, HEIGHT_MAX)})
    await tab.screenshot(path=file)
    if find_spec("PIL") is not None:
        _reduce(file)


def _reduce(file: Path) -> None:
    """Keep the commonest colours, which makes a picture a third as large."""
    pillow = import_module("PIL.Image")
    image = pillow.open(file).convert("RGB")
    colours = sorted(image.getcolors(1 << 24), reverse=True)[:256]
    palette = pillow.new("P", (1, 1))
    palette.putpalette([part for _, colour in colours for part in colour])
    image.quantize(palette=palette, dither=0).save(file, optimize=True)


if __name__ == "__main__":
    asyncio.run(main())
