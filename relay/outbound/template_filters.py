"""How a value becomes text in a template, and the filters that Jinja lacks."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import orjson
from jinja2 import Undefined, pass_context

from relay.core.errors import InvalidTemplate
from relay.core.foreign_json import whole
from relay.outbound.template_environment import BUDGET
from relay.outbound.visible_text import in_markdown, one_line

_DATE_GROWTH = 256
"""How much longer a time can be than its format: a format may hold widths."""

_WORK = 16
"""Of a filter that looks at each character, and may escape or drop it."""


class Json(str):
    """A text that is a JSON value; other filters turn it into a plain text again."""

    __slots__ = ()


def text_of(value: object) -> str:
    """Write a value as text, null as none; raises InvalidTemplate for one that has no text."""
    match value:
        case str():
            return value
        case None:
            return ""
        case bool() | list() | dict():
            return _json(value)
        case Undefined():
            return str(value)
    if callable(value) or isinstance(value, Iterator) or type(value).__repr__ is object.__repr__:
        raise InvalidTemplate("it outputs what has no text: a function, or items one by one")
    return str(value)


def _json(value: object) -> Json:
    return Json(orjson.dumps(value).decode())


def _cut(value: object, length: int, end: str = "…") -> str:
    """Shorten a value of any type to `length` characters, those of `end` included."""
    text = text_of(value)
    return text if len(text) <= length else (text[: max(length - len(end), 0)] + end)[:length]


@pass_context
def _date(context: Any, value: object, format: str = "%Y-%m-%d %H:%M") -> str:  # noqa: A002
    """Write a time in UTC; a text that is no time stays as it is."""
    text = text_of(value)
    try:
        time = datetime.fromisoformat(text.strip().upper())
        utc = (time if time.tzinfo else time.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):  # the second for the first and the last year there is
        return text
    context[BUDGET].grow(_DATE_GROWTH * len(format))
    return utc.strftime(format)


@pass_context
def _sha256(context: Any, value: object) -> str:
    text = text_of(value)
    context[BUDGET].grow(len(text))
    return hashlib.sha256(whole(text).encode()).hexdigest()


@pass_context
def _uuid(context: Any, value: object) -> str:
    """Return a UUID that is the same for the same text (RFC 9562, version 5)."""
    text = text_of(value)
    context[BUDGET].grow(len(text))
    return str(uuid5(NAMESPACE_URL, whole(text)))


@pass_context
def _markdown(context: Any, value: object) -> str:
    text = text_of(value)
    context[BUDGET].grow(_WORK * len(text))
    return in_markdown(text)


@pass_context
def _one_line(context: Any, value: object) -> str:
    text = text_of(value)
    context[BUDGET].grow(_WORK * len(text))
    return one_line(text)


FILTERS: Mapping[str, Callable[..., str]] = {
    "cut": _cut,
    "date": _date,
    "markdown": _markdown,
    "one_line": _one_line,
    "sha256": _sha256,
    # Jinja's own marks its output as escaped for HTML.
    "tojson": _json,
    "uuid": _uuid,
}
