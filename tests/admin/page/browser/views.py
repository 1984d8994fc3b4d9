"""An example of every view of a relay's page after its week, and of what it says of faults."""

from collections.abc import Awaitable, Callable, Mapping

from playwright.async_api import Page

from tests.admin.page.browser.day import LEAD
from tests.admin.page.browser.journeys.steps import press, until_settled

OpenView = Callable[[Page], Awaitable[object]]
"""Takes a tab of a window with a login to a view."""


def _at(path: str) -> OpenView:
    async def opened(tab: Page) -> None:
        await tab.goto(path)

    return opened


def _row_of(path: str, *, more: str = "") -> OpenView:
    """Open the first row of a list."""

    async def opened(tab: Page) -> None:
        await tab.goto(path)
        link = await tab.locator("[data-row] a").first.get_attribute("href")
        await tab.goto(f"{link}{more}")

    return opened


def _counted(path: str, name: str) -> OpenView:
    """Count what a bulk change would concern."""

    async def opened(tab: Page) -> None:
        await tab.goto(path)
        await press(tab, "Count them all")
        await until_settled(tab, rf"^{name} \d+ ")

    return opened


async def _trial(tab: Page) -> None:
    await tab.goto("/sinks/sales")
    await tab.get_by_label("Raw body of an event").fill("{not an event")
    await tab.get_by_role("button", name="Try it").click()
    await tab.get_by_role("heading", level=1).get_by_text("Try an event on sales").wait_for()


async def _person(tab: Page) -> None:
    await tab.goto("/people")
    await tab.get_by_label("E-mail address").fill("visitor07@example.com")
    await tab.get_by_role("button", name="Look up").click()
    await tab.get_by_role("heading", name="visitor07@example.com").wait_for()


VIEWS: Mapping[str, OpenView] = {
    "now": _at("/"),
    "events": _at("/events"),
    "events by filter": _at("/events?kind=video.*&outcome=delivered&video=vid_0be3a10c77f0"),
    "events, none": _at("/events?id=evt_nowhere"),
    "event": _row_of("/events?kind=lead.captured"),
    "event, failed": _row_of(f"/events?exact_id={LEAD}"),
    "event, raw": _row_of("/events?kind=lead.captured", more="?body=raw"),
    "event, message": _row_of("/events?kind=lead.captured", more="?body=as:sales"),
    "event, dead": _row_of("/events?outcome=dead&sink=crm"),
    "event, pending": _row_of("/events?outcome=pending&sink=crm"),
    "replay": _at("/events/replay?kind=lead.captured&sink=warehouse"),
    "replay, counted": _counted("/events/replay?kind=lead.captured&sink=warehouse", "Replay"),
    "discard": _at("/events/discard?sink=crm"),
    "discard, counted": _counted("/events/discard?sink=crm", "Discard"),
    "replays": _at("/replays"),
    "replays, one": _row_of("/replays"),
    "dead letters": _at("/dead-letters"),
    "dead letters by filter": _at("/dead-letters?sink=crm&kind=video.*"),
    "unreadable": _at("/unreadable"),
    "unreadable, one": _row_of("/unreadable"),
    "sinks": _at("/sinks"),
    "sink, parked": _at("/sinks/crm?over=week"),
    "sink, paused": _at("/sinks/newsletter"),
    "sink, trial": _at("/sinks/sales/try?seq=0"),
    "sink, trial refused": _trial,
    "people": _at("/people"),
    "erasure": _row_of("/people"),
    "person": _person,
    "audience": _at("/audience"),
    "audience, one video": _at("/audience?period=7d&video=vid_0be3a10c77f0"),
    "audience, none": _at("/audience?since=2020-01-01&until=2020-01-02"),
    "changes": _at("/changes"),
    "changes, none": _at("/changes?operation=reload_config&until=2020-01-01"),
    "absences": _at("/absences"),
    "reconciliations": _at("/reconciliations"),
    "reconciliations, one": _row_of("/reconciliations"),
    "config": _at("/config"),
    "rotation": _at("/config/sources/main/rotation"),
    "runbook": _at("/runbook"),
    "login": _at("/login"),
    "error, not found": _at("/nowhere"),
    "error, bad filter": _at("/events?outcome=lost"),
    "error, bad number": _at("/events/0x1"),
}
