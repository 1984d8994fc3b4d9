"""How values enter Slack's texts: escaped for the place where each of them lands (slack.md, 5).

Our own messages and the author's templates are written by the same functions.
"""

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from itertools import accumulate, groupby, takewhile
from typing import Literal
from urllib.parse import quote

from relay.outbound.template import Escape, Pieces, Value, Write, escaping
from relay.outbound.visible_text import in_markdown, one_line

VALUE_MAX = 1000
"""The longest value that one expression may put into a text, in characters."""

_Place = Literal["text", "target", "label"]
_Moves = Mapping[tuple[_Place, str], _Place]
"""Where what follows lands after a mark in the author's text; any other mark changes nothing."""

_MRKDWN: _Moves = {
    ("text", "<"): "target",
    ("target", "|"): "label",
    ("target", ">"): "text",
    ("label", ">"): "text",
}
_MARKDOWN: _Moves = {
    ("text", "]("): "target",
    ("text", "<"): "target",
    ("target", ")"): "text",
    ("target", ">"): "text",
}
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def clean(text: str, *, limit: int) -> str:
    """Make one line of visible characters."""
    return cut(one_line(" ".join(text.split())[: limit * 4]), limit)


def cut(text: str, limit: int) -> str:
    """Shorten by whole characters until the text is within the limit, escaped or not."""
    if sum(map(_width, text)) <= limit:
        return text
    widths = accumulate(map(_width, text))
    end = sum(1 for _ in takewhile(lambda width: width < limit, widths))
    return text[:end].rstrip() + "…"


def moment(at_s: int) -> str:
    """Return a time in each reader's time zone (mrkdwn)."""
    shown = datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
    # The text after the bar is for clients that cannot convert it.
    return f"<!date^{at_s}^{{date_short_pretty}}, {{time}}|{shown}>"


def _in_mrkdwn(value: str) -> str:
    # These three characters, and no others.
    text = clean(value, limit=VALUE_MAX)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _in_markdown(value: str) -> str:
    return in_markdown(clean(value, limit=VALUE_MAX))


def _in_plain_text(value: str) -> str:
    return clean(value, limit=VALUE_MAX)


def _in_url(value: str) -> str:
    return quote(clean(value, limit=VALUE_MAX), safe="")


def _linking(moves: _Moves, in_text: Escape) -> Write:
    """Write a text that can hold links: a value in the address of one is percent-encoded."""
    marks = re.compile("|".join(re.escape(mark) for mark in {mark for _, mark in moves}))

    def write(pieces: Pieces) -> Iterator[str]:
        place: _Place = "text"
        for are_values, group in groupby(pieces, lambda piece: isinstance(piece, Value)):
            if are_values:
                yield from map(_in_url if place == "target" else in_text, group)
                continue
            text = "".join(group)
            for mark in marks.findall(text):
                place = moves.get((place, mark), place)
            yield text

    return write


mrkdwn = _linking(_MRKDWN, _in_mrkdwn)
markdown = _linking(_MARKDOWN, _in_markdown)
"""Of a `markdown` block, which is not `mrkdwn`: any ASCII punctuation of a value is escaped."""
plain_text = escaping(_in_plain_text)
url = escaping(_in_url)


def _width(char: str) -> int:
    # It is not known whether Slack counts characters, UTF-16 units or the escaped text.
    return len(_ENTITIES.get(char, "")) or (2 if char > "\uffff" else 1)
