"""Lists on open pages: their newest rows, or the rows that must stay in place.

If a list is under the pointer or has the focus, the page sends the positions of its rows in the
header `Relay-Held`. The view reads those rows again, and only counts newer ones.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from relay.admin.api.parameters import NUMBER_MAX, PAGE_MAX

HEADER = "relay-held"

NEWER_MAX = 100
"""Below this, new rows are counted by reading them."""

_ITEM = re.compile(r"([a-z-]{1,20})=(?:([0-9]{1,16})-([0-9]{1,16}))?")


class Range(msgspec.Struct, frozen=True):
    """Positions of the rows that a page holds; `oldest` is 0 if its list had no next page."""

    newest: int = NUMBER_MAX - 1
    oldest: int = 0


Held = Mapping[str, Range]
"""Lists in use by their ids."""

Estimate = Callable[[int, int], Awaitable[tuple[int, bool]]]
"""Counts the rows from the newest position down to one that is held: how many, and whether there
are more than that."""


def held_of(header: str) -> Held:
    """Parse the header; ignores what the page's script would not send."""
    matches = filter(None, map(_ITEM.fullmatch, header.split(",")))
    return {
        name: Range(min(int(newest), NUMBER_MAX - 1), int(oldest)) if newest else Range()
        for name, newest, oldest in (match.groups() for match in matches)
    }


class ListPage(msgspec.Struct, frozen=True):
    """A page of a list, and what its table tells the script."""

    response: Any
    """Of the API, as far as the list shows it."""
    attributes: Mapping[str, object]


class ListReader(msgspec.Struct, frozen=True):
    """Reads a list that the API returns in pages, newest first."""

    read: Callable[[Any], Awaitable[Any]]
    """Takes the page that is wanted."""
    rows: str
    """Field of the response that holds the rows."""
    position: str
    """Field of a row by which the list is in order."""
    estimate: Estimate | None = None

    async def page(self, held: Held, name: str, page: Any) -> ListPage:
        """Read one page, or the rows of it that are held."""
        if page.before is not None:
            return ListPage(await self.read(page), {"id": name, "data-hold": "always"})
        if name in held:
            return await self._held(name, held[name], page)
        response = await self.read(page)
        shown = self._positions(response)
        newest = shown[0] if shown else 0
        oldest = 0 if response.next is None else shown[-1] if shown else response.next
        return ListPage(response, _attributes(name, Range(newest, oldest)))

    async def _held(self, name: str, span: Range, page: Any) -> ListPage:
        more = min(2 * page.limit, PAGE_MAX)
        response = await self.read(replace(page, before=span.newest + 1, limit=more))
        if span.oldest:
            kept = [
                row
                for row in getattr(response, self.rows)
                if getattr(row, self.position) >= span.oldest
            ]
            response = replace(response, **{self.rows: kept, "next": span.oldest})
        count, is_over = await self._newer(span, page)
        return ListPage(response, _attributes(name, span, count, is_over=is_over))

    async def _newer(self, span: Range, page: Any) -> tuple[int, bool]:
        """Count the rows above the held ones; returns whether there are more than that."""
        response = await self.read(replace(page, limit=NEWER_MAX))
        shown = self._positions(response)
        count = sum(each > span.newest for each in shown)
        is_over = bool(count) and count == len(shown) and response.next is not None
        if not is_over or self.estimate is None:
            return count, is_over
        estimated, is_more = await self.estimate(shown[0], span.newest)
        return max(count, estimated), is_more

    def _positions(self, response: Any) -> Sequence[int]:
        return [getattr(row, self.position) for row in getattr(response, self.rows)]


def unpaged(name: str) -> Mapping[str, object]:
    """Return the attributes of a list that is always shown whole."""
    return {"id": name, "data-hold": "auto"}


def _attributes(
    name: str, span: Range, newer: int = 0, *, is_over: bool = False
) -> Mapping[str, object]:
    attributes: dict[str, object] = {
        **unpaged(name),
        "data-range": f"{span.newest}-{span.oldest}",
        "data-newer": newer,
    }
    return attributes | {"data-over": ""} if is_over else attributes
