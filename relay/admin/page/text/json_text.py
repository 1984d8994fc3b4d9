"""JSON as indented and marked text, made from its characters: numbers and repeated keys stay."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

CHARACTERS_MAX = 32 * 1024
"""Longest text of a page; a longer one would be slow to open."""

INDENTED_MAX = 40
"""Levels that are indented; deeper ones are as far to the right as this one."""

_SPACE = re.compile(r"[ \t\r\n]*")
_TOKEN = re.compile(
    r'(?P<s>"[^"\\]*(?:\\.[^"\\]*)*")(?P<colon>[ \t\r\n]*:)?'
    r"|(?P<n>-?[0-9][0-9.eE+-]*|true|false|null)"
    r"|(?P<empty>\{[ \t\r\n]*\}|\[[ \t\r\n]*\])"
    r"|(?P<open>[{\[])|(?P<close>[}\]])|(?P<comma>,)",
    re.DOTALL,
)

Mark = Literal["k", "s", "n", ""]
SHORT_MAX = 100
"""Characters of a value, such as a topic, without a heading of its own."""


class Piece(NamedTuple):
    """A part of a text: a key, a string, another value, or the rest."""

    mark: Mark
    text: str


class Shown(msgspec.Struct, frozen=True):
    """A text, or its beginning."""

    pieces: Sequence[Piece]
    is_whole: bool

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)


def plain(text: str) -> Shown:
    """Show a text as it is."""
    return Shown([Piece("", text[:CHARACTERS_MAX])], len(text) <= CHARACTERS_MAX)


def pretty(text: str) -> Shown | None:
    """Indent and mark JSON, as far as it is shown; None if that part is not JSON."""
    pieces: list[Piece] = []
    size = 0
    try:
        for piece in _joined(_pieces(text)):
            if size + len(piece.text) > CHARACTERS_MAX:
                pieces.append(Piece(piece.mark, piece.text[: CHARACTERS_MAX - size]))
                return Shown(pieces, is_whole=False)
            pieces.append(piece)
            size += len(piece.text)
    except ValueError:
        return None
    return Shown(pieces, is_whole=True)


def _joined(pieces: Iterator[Piece]) -> Iterator[Piece]:
    """Join neighbours without a mark, in parts that a limit can cut."""
    plain_text = ""
    for piece in pieces:
        if piece.mark or len(plain_text) > 1000:
            if plain_text:
                yield Piece("", plain_text)
            plain_text = ""
        if piece.mark:
            yield piece
        else:
            plain_text += piece.text
    if plain_text:
        yield Piece("", plain_text)


def _pieces(text: str) -> Iterator[Piece]:
    """Yield the parts of indented JSON; raises ValueError where the text is not JSON."""
    depth, at = 0, _after_space(text, 0)
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            raise ValueError(at)
        match token.lastgroup:
            case "colon":
                yield Piece("k", _readable(token["s"]))
                yield Piece("", ": ")
            case "s":
                yield Piece("s", _readable(token["s"]))
            case "n":
                yield Piece("n", token["n"])
            case "empty":
                yield Piece("", token["empty"][0] + token["empty"][-1])
            case "open":
                depth += 1
                yield Piece("", token["open"] + _line(depth))
            case "close":
                depth -= 1
                yield Piece("", _line(depth) + token["close"])
            case _:
                yield Piece("", "," + _line(depth))
        at = _after_space(text, token.end())


def _after_space(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return at if space is None else space.end()


def _line(depth: int) -> str:
    return "\n" + "  " * min(max(depth, 0), INDENTED_MAX)


def _readable(token: str) -> str:
    """Write letters for their escapes; controls stay escaped."""
    if "\\" not in token:
        return token
    return json.dumps(json.loads(token, strict=False), ensure_ascii=False)


class MessagePart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a message: a text, or pairs of names and texts; short values have no name."""

    name: str
    pairs: Sequence[tuple[str, str]] = ()
    text: Shown | None = None


def parts_of(message: Mapping[str, Any]) -> list[MessagePart]:
    """Split a message: short values first, then the parts with a heading."""
    short, rest = [], []
    for name, value in message.items():
        if _is_table(value):
            rest.append(
                MessagePart(name=name, pairs=[(key, _text(each)) for key, each in value.items()])
            )
        elif _is_short(text := _text(value)):
            short.append((name, text))
        else:
            rest.append(MessagePart(name=name, text=pretty(text) or plain(text)))
    return [MessagePart(name="", pairs=short), *rest] if short else rest


def _is_table(value: object) -> bool:
    return isinstance(value, Mapping) and not any(
        isinstance(each, list | Mapping) for each in value.values()
    )


def _is_short(text: str) -> bool:
    return len(text) <= SHORT_MAX and not text.startswith(("{", "["))


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
