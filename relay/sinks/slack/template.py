"""An operator's own Slack message: `text` and `blocks` of the config, filled in with events.

The structure is the operator's; only texts are templates, so that no event can change it.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from relay.core.errors import InvalidTemplate
from relay.core.event import Event
from relay.core.setting_errors import Faults
from relay.outbound.template import Template, Write
from relay.sinks.slack import escaping
from relay.sinks.slack.blocks import (
    BLOCKS_MAX,
    CONTEXT_MAX,
    FIELD_MAX,
    FIELDS_MAX,
    HEADER_MAX,
    NOTHING,
    TEXT_MAX,
    TOTAL_MAX,
    Block,
    mrkdwn,
    section,
    size,
)
from relay.sinks.slack.escaping import cut
from relay.sinks.slack.history import history_blocks
from relay.sinks.slack.message import fallback, origin, payload

_OWN_BLOCKS_MAX = BLOCKS_MAX - 1  # the last one carries the event's id
_LISTS = {"fields": FIELDS_MAX, "elements": CONTEXT_MAX}
_PARTLY_ESCAPED = re.compile(r"(&[a-z]*|<[^>]*)$")


def _cut_mrkdwn(text: str, limit: int) -> str:
    # Neither an entity nor a link may be cut through.
    if len(text) <= limit:
        return text
    return _PARTLY_ESCAPED.sub("", text[: limit - 1]) + "…"


class _Style(NamedTuple):
    """How values are escaped in a text, and how it is shortened, to how many characters."""

    write: Write
    cut: Callable[[str, int], str]
    limit: int


_MRKDWN = _Style(escaping.mrkdwn, _cut_mrkdwn, TEXT_MAX)
_PLAIN = _Style(escaping.plain_text, cut, TEXT_MAX)
_URL = _Style(escaping.url, _cut_mrkdwn, 3000)
_STYLES_BY_KEY = {
    "action_id": _PLAIN._replace(limit=255),
    "alt_text": _PLAIN._replace(limit=2000),
    "block_id": _PLAIN._replace(limit=255),
    "image_url": _URL,
    "thumbnail_url": _URL,
    "title_url": _URL,
    "url": _URL,
    "value": _PLAIN._replace(limit=2000),
}
_STYLES_BY_TYPE = {
    "link": _PLAIN,
    "markdown": _Style(escaping.markdown, cut, TEXT_MAX),
    "plain_text": _PLAIN,
    "text": _PLAIN,
}
_LIMITS = {
    "button": 75,
    "confirm": 30,
    "deny": 30,
    "fields": FIELD_MAX,
    "header": HEADER_MAX,
    "markdown": 12_000,
    "options": 75,
    "placeholder": 150,
}
"""Maximum lengths of texts in a table of this type, or below this key."""


class _Text(msgspec.Struct, frozen=True):
    """One text of a block, with its path in the config and its style in Slack."""

    path: str
    template: Template
    style: _Style

    def fill(self, event: Event) -> str:
        """Return the whole text; raises InvalidTemplate, with the path."""
        try:
            return self.template.render(event)
        except InvalidTemplate as error:
            raise InvalidTemplate(f"{self.path}: {error}") from None

    def render(self, event: Event) -> str:
        text = self.fill(event)
        return self.style.cut(text, self.style.limit) if text.strip() else NOTHING


class OwnMessage:
    """Makes payloads of `text` and `blocks`; either may be None."""

    def __init__(self, *, text: str | None = None, blocks: Sequence[Block] | None = None) -> None:
        """Raises InvalidTemplate as `Faults` does, each with its key and cause."""
        faults = Faults()
        self._text: _Text | None = None
        self._blocks: list[Any] = []
        with faults.collect():
            if blocks is not None and not 0 < len(blocks) <= _OWN_BLOCKS_MAX:
                raise InvalidTemplate(f"blocks: expected 1 to {_OWN_BLOCKS_MAX} tables")
        with faults.collect():
            self._text = None if text is None else _template("text", text, _MRKDWN)
        for place, block in enumerate(blocks or ()):
            with faults.collect():
                if not isinstance(block.get("type"), str):
                    raise InvalidTemplate(f"blocks[{place}].type: expected Slack's name of a block")
                self._blocks.append(_compile(block, f"blocks[{place}]", _MRKDWN))
        faults.raise_all()

    def render(self, event: Event) -> dict[str, Any]:
        """Make the payload; raises InvalidTemplate where a template fails on this event."""
        blocks = [_fill(block, event) for block in self._blocks]
        if self._text is None:
            return self._whole(fallback(event), blocks, event)
        text = _cut_mrkdwn(self._text.fill(event).strip(), TEXT_MAX)
        if not text:
            raise InvalidTemplate("text: nothing is written")
        return self._whole(text, blocks or [section(mrkdwn(text))], event)

    def _whole(self, text: str, blocks: list[Block], event: Event) -> dict[str, Any]:
        every = [*blocks, origin(event)]
        if size(every) > TOTAL_MAX:
            raise InvalidTemplate(f"blocks: longer than {TOTAL_MAX} characters, as JSON")
        more = [*blocks, *history_blocks(event), origin(event)]
        has_room = len(more) <= BLOCKS_MAX and size(more) <= TOTAL_MAX
        return payload(text, more if has_room else every)


def _compile(value: object, path: str, style: _Style) -> Any:
    match value:
        case str():
            return _template(path, value, style)
        case dict():
            return dict(_compile_table(value, path, style))
        case list():
            return [_compile(each, f"{path}[{place}]", style) for place, each in enumerate(value)]
        case bool() | int() | float():
            return value
    raise InvalidTemplate(f"{path}: Slack's blocks hold texts, numbers, true, false and lists")


def _compile_table(table: Block, path: str, outer: _Style) -> Iterator[tuple[str, Any]]:
    kind = str(table.get("type"))
    style = _STYLES_BY_TYPE.get(kind, _MRKDWN)
    style = style._replace(limit=_LIMITS.get(kind, outer.limit))
    for key, value in table.items():
        if isinstance(value, list) and len(value) > _LISTS.get(key, len(value)):
            raise InvalidTemplate(f"{path}.{key}: expected at most {_LISTS[key]}")
        inner = style._replace(limit=_LIMITS.get(key, style.limit))
        yield key, _compile(value, f"{path}.{key}", _STYLES_BY_KEY.get(key, inner))
    if kind == "mrkdwn":
        # Without it Slack turns any text that looks like a link into one, a stranger's included.
        yield "verbatim", table.get("verbatim", True)


def _fill(value: object, event: Event) -> Any:
    match value:
        case _Text():
            return value.render(event)
        case dict():
            return {key: _fill(each, event) for key, each in value.items()}
        case list():
            return [_fill(each, event) for each in value]
    return value


def _template(path: str, source: str, style: _Style) -> _Text:
    try:
        return _Text(path, Template(source, write=style.write), style)
    except InvalidTemplate as error:
        raise InvalidTemplate(f"{path}: {error}") from None
