"""Pictures of the views for docs/console.md: `python -m tests.admin.page.browser.pictures`.

Made again on the same quiet machine they are the same, byte for byte.
"""

import asyncio
import re
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import count
from math import dist
from operator import sub
from pathlib import Path
from struct import iter_unpack
from typing import get_args

from playwright.async_api import Page, Route

from tests.admin.page.browser import HEIGHT, Browser, Login, Theme, launched, see_live
from tests.admin.page.browser.day import NOW, played
from tests.admin.page.browser.entering import login_of
from tests.admin.page.browser.views import VIEWS

FOLDER = Path(__file__).parents[4] / "docs" / "images"
WIDTH = 1280
HEIGHT_MAX = 1600
COLOURS_MAX = 256

Colour = tuple[int, int, int]

_AS_INSTALLED = {
    r"http://127\.0\.0\.1:\d+/…": "https://crm.example.com/…",
    r"(admin_listen\W.{0,99}?127\.0\.0\.1:)0\b": r"\g<1>9464",
    r"127\.0\.0\.1:0\b": "127.0.0.1:8080",
    r"127\.0\.0\.1:(?!8080)\d+": "127.0.0.1:9464",
    r"[\d.]+ [KMGT]iB( free|; below)": r"64.0 GiB\1",
    r"\b[0-9a-f]{16}\b": "2e4bea631316a050",
    r"\b0 ms (<small>median)": r"4 ms \1",
    r"(99 % in about) [01] ms": r"\1 9 ms",
    r"(<dt>(?:Store|Size)</dt><dd>)[\d.]+ MiB": r"\g<1>1.2 MiB",
}
"""Texts of the pages as they would be on a server, by their patterns; applied in this order.

The digest of a person is keyed by the store, at random; acknowledgements take no time by the clock
of the day.
"""

PICTURES: Mapping[str, str] = {
    "now": "now",
    "events": "events",
    "event": "event, failed",
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
                await _take(browser, login, theme, folder)


async def _take(browser: Browser, login: Login, theme: Theme, folder: str) -> None:
    async with browser.open(theme=theme, width=WIDTH, login=login) as window:
        await window.context.route("**/*", partial(_answer, folder=folder))
        tab = await window.tab()
        await tab.clock.set_fixed_time(NOW)
        for name, view in PICTURES.items():
            await tab.set_viewport_size({"width": WIDTH, "height": HEIGHT})
            await VIEWS[view](tab)
            height = await tab.evaluate("document.documentElement.scrollHeight")
            await tab.set_viewport_size({"width": WIDTH, "height": min(height, HEIGHT_MAX)})
            # Again, because edges look another way where a part is painted anew.
            await VIEWS[view](tab)
            await _keep(tab, FOLDER / f"console-{name}-{theme}.png")


async def _answer(route: Route, *, folder: str) -> None:
    """Replace what is another at each run or on each machine: the folder, ports, and free space."""
    if route.request.resource_type not in ("document", "xhr"):
        await route.continue_()
        return
    response = await route.fetch(max_redirects=0)
    text = (await response.text()).replace(folder, "/var/lib/relay")
    for pattern, replacement in _AS_INSTALLED.items():
        text = re.sub(pattern, replacement, text, flags=re.DOTALL)
    await route.fulfill(response=response, body=text)


async def _keep(tab: Page, file: Path) -> None:
    """Save a picture of the page once it is live."""
    if await tab.locator("body[data-live-url]").count():
        await see_live(tab)
    await tab.screenshot(path=file)
    if find_spec("PIL") is not None:
        _reduce(file)


def _reduce(file: Path) -> None:
    """Keep 256 colours, which makes a picture a third as large.

    The commonest stay, except for those that hardly differ from a commoner one: otherwise shades
    of the letters would displace the colours of small signs.
    """
    pillow = import_module("PIL.Image")
    image = pillow.open(file).convert("RGB")
    commonest = [colour for _, colour in sorted(image.getcolors(1 << 24), reverse=True)]
    colours = next(
        chosen for distance in count() if len(chosen := _apart(commonest, distance)) <= COLOURS_MAX
    )
    nearest = {
        colour: min(range(len(colours)), key=lambda index: dist(colours[index], colour))
        for colour in commonest
    }
    # Pillow's own mapping is coarse: it would tint a white page.
    reduced = pillow.new("P", image.size)
    reduced.putpalette([part for colour in colours for part in colour])
    reduced.putdata([nearest[pixel] for pixel in iter_unpack("BBB", image.tobytes())])
    reduced.save(file, optimize=True)


def _apart(colours: Sequence[Colour], distance: int) -> list[Colour]:
    """Return the first colours that differ by more than this in one part from those before."""
    chosen: list[Colour] = []
    for colour in colours:
        if not any(max(map(abs, map(sub, colour, each))) <= distance for each in chosen):
            chosen.append(colour)
            if len(chosen) > COLOURS_MAX:
                break
    return chosen


if __name__ == "__main__":
    asyncio.run(main())
