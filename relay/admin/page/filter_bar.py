"""The filter bar of a view: a form that makes the view's URL, and chips that drop a filter."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from starlette.exceptions import HTTPException

from relay.admin.page.visit import PageVisit
from relay.core.config_values import Duration, Moment

ANY_KIND = "any, or video.*"
SINCE = "2026-11-22, or 2h"
UNTIL = "now"
"""Hints of the fields that several views have."""


Time = Annotated[str, Meta(min_length=1, max_length=40)]

_AGO = re.compile("[0-9]{1,6}(s|m|h|d)")
_EXPECTED = "a time in UTC such as 2026-11-22 14:05, one with an offset, or 2h for 2 h ago"


def moment(label: str, text: str | None, now_ms: int) -> int | None:
    """Parse a time in UTC or with an offset, or how long ago it was; raises HTTPException."""
    if text is None:
        return None
    text = text.strip()
    try:
        if _AGO.fullmatch(text):
            return max(0, now_ms - Duration.parse(text))
        return max(0, Moment.parse(text.removesuffix("UTC").strip()))
    except ValueError:
        raise HTTPException(400, f"{label}: expected {_EXPECTED}.") from None


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """One field; with choices a list, else a text."""

    name: str
    label: str
    value: str | None = None
    words: str | None = None
    """The value for people, where it is another."""
    default: str | None = None
    """The value that filters nothing."""
    hint: str = ""
    """An example of a value, or the meaning of an empty field."""
    type: Literal["text", "date", "hidden"] = "text"
    choices: Mapping[str, str] | None = None
    """Values with their words."""
    suggestions: Sequence[str] = ()
    is_rare: bool = False
    """Whether it stands under "More filters"."""

    @property
    def is_filled(self) -> bool:
        return self.value not in (None, self.default)

    @property
    def options(self) -> Mapping[str, str]:
        """The choices, and the value if it is none of them, such as a removed sink."""
        choices = self.choices or {}
        is_known = self.value is None or self.value in choices
        return choices if is_known else {**choices, str(self.value): str(self.value)}


class Chip(msgspec.Struct, frozen=True, kw_only=True):
    """One filled-in field in words; `without` is the URL of the view without it."""

    label: str
    value: str
    name: str
    without: str | None = None


class FilterBar(msgspec.Struct, frozen=True, kw_only=True):
    """What the template `filter_bar.html` shows."""

    fields: Sequence[Field]
    chips: Sequence[Chip]
    kept: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Parameters of the view that are no filter; they stay when all filters are dropped."""

    @property
    def common(self) -> Sequence[Field]:
        return [each for each in self.fields if not each.is_rare]

    @property
    def rare(self) -> Sequence[Field]:
        return [each for each in self.fields if each.is_rare]


def filter_bar(
    visit: PageVisit, fields: Sequence[Field], kept: Mapping[str, str] | None = None
) -> FilterBar:
    """Build the bar of this view; each chip leads to the view without its field."""
    return FilterBar(fields=fields, chips=chips(visit, fields), kept=kept or {})


def chips(visit: PageVisit, fields: Sequence[Field]) -> list[Chip]:
    """Describe the filled-in fields, each with the URL of this view without it."""
    return [
        Chip(
            label=chip.label,
            value=chip.value,
            name=chip.name,
            without=visit.here(**{chip.name: None, "before": None}),
        )
        for chip in fixed_chips(fields)
    ]


def fixed_chips(fields: Sequence[Field]) -> list[Chip]:
    """Describe the filled-in fields of a filter that is fixed."""
    return [
        Chip(
            label=each.label,
            value=each.words or (each.choices or {}).get(each.value or "") or str(each.value),
            name=each.name,
        )
        for each in fields
        if each.is_filled
    ]


def same(names: Sequence[str]) -> dict[str, str]:
    """Return choices whose words are the values themselves."""
    return {name: name for name in names}
