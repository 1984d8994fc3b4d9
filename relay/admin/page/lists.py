"""Lists of open pages: their newest rows, or those that a page in use holds in their places.

A page whose list is under the pointer or has the focus asks for the positions that it shows, by the
header `Relay-Held`. Those rows are read again, and what came since is only counted.
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
    """Parse the header; what a script of ours would not send is left out."""
    matches = filter(None, map(_ITEM.fullmatch, header.split(",")))
    return {
        name: Range(min(int(newest), NUMBER_MAX - 1), int(oldest)) if newest else Range()
        for name, newest, oldest in (match.groups() for match in matches)
    }


class Listed(msgspec.Struct, frozen=True):
    """A page of a list, and what its table tells the script."""

    response: Any
    """Of the API, as far as the list shows it."""
    attributes: Mapping[str, object]


async def listed(
    held: Held,
    name: str,
    page: Any,
    read: Callable[[Any], Awaitable[Any]],
    *,
    rows: str,
    position: str,
    estimate: Estimate | None = None,
) -> Listed:
    """Read one page of a list, or the rows that are held of it.

    `rows` and `position` name the response's list, and the number by which its rows are in order.
    """
    if page.before is not None:
        return Listed(await read(page), {"id": name, "data-hold": "always"})
    if name not in held:
        response = await read(page)
        shown = _positions(response, rows, position)
        newest = shown[0] if shown else 0
        oldest = 0 if response.next is None else shown[-1] if shown else response.next
        return Listed(response, _attributes(name, Range(newest, oldest)))
    span = held[name]
    more = min(2 * page.limit, PAGE_MAX)
    response = await read(replace(page, before=span.newest + 1, limit=more))
    if span.oldest:
        kept = [each for each in getattr(response, rows) if getattr(each, position) >= span.oldest]
        response = replace(response, **{rows: kept, "next": span.oldest})
    count, is_over = await _newer(span, page, read, rows, position, estimate)
    return Listed(response, _attributes(name, span, count, is_over=is_over))


def unpaged(name: str) -> Mapping[str, object]:
    """Return the attributes of a list that is always shown whole."""
    return {"id": name, "data-hold": "auto"}


async def _newer(  # noqa: PLR0917
    span: Range,
    page: Any,
    read: Callable[[Any], Awaitable[Any]],
    rows: str,
    position: str,
    estimate: Estimate | None,
) -> tuple[int, bool]:
    """Count what is newer than the held rows."""
    response = await read(replace(page, limit=NEWER_MAX))
    shown = _positions(response, rows, position)
    count = sum(each > span.newest for each in shown)
    is_over = bool(count) and count == len(shown) and response.next is not None
    if not is_over or estimate is None:
        return count, is_over
    estimated, is_more = await estimate(shown[0], span.newest)
    return max(count, estimated), is_more


def _positions(response: Any, rows: str, position: str) -> Sequence[int]:
    return [getattr(each, position) for each in getattr(response, rows)]


def _attributes(
    name: str, span: Range, newer: int = 0, *, is_over: bool = False
) -> Mapping[str, object]:
    attributes: dict[str, object] = {
        **unpaged(name),
        "data-range": f"{span.newest}-{span.oldest}",
        "data-newer": newer,
    }
    return attributes | {"data-over": ""} if is_over else attributes
