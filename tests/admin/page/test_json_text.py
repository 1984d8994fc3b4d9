"""JSON as it is shown: indented and marked, with every value as it was sent; and in a message."""

import orjson
import pytest

from relay.admin.page.text.formats import visible
from relay.admin.page.text.json_text import CHARACTERS_MAX, MessagePart, parts_of, plain, pretty

LONG = "x" * 200


def shown(text: str) -> str:
    result = pretty(text)
    assert result is not None
    assert result.is_whole
    return result.text


def test_values_are_indented_and_keep_their_spelling() -> None:
    text = '{"a":[1.10,12345678901234567890,{}],"b": [ ] ,"a":null}'
    assert shown(text) == (
        '{\n  "a": [\n    1.10,\n    12345678901234567890,\n    {}\n  ],'
        '\n  "b": [],\n  "a": null\n}'
    )


def test_keys_strings_and_other_values_are_marked() -> None:
    result = pretty('{"a": "b", "c": true}')
    assert result is not None
    marked = [(piece.mark, piece.text) for piece in result.pieces if piece.mark]
    assert marked == [("k", '"a"'), ("s", '"b"'), ("k", '"c"'), ("n", "true")]


def test_escaped_letters_are_readable_and_controls_stay_visible() -> None:
    text = r'"Chlo\u00e9 \u0000 \ud800 \u202e \" \\ \n"'
    assert visible(shown(text)) == r'"Chloé \u0000 [U+D800] [U+202E] \" \\ \n"'


@pytest.mark.parametrize("text", ["{nothing", '{"a', "\0", "{'a': 1}", "NaN"])
def test_other_texts_are_not_taken_for_json(text: str) -> None:
    assert pretty(text) is None


@pytest.mark.parametrize(
    "text",
    ["[" * 500_000, '["' + "x" * 500_000 + '"]', "[" + "1," * 300_000 + "1]", '{"a":' * 100_000],
)
def test_no_more_than_the_limit_is_made(text: str) -> None:
    result = pretty(text)
    assert result is not None
    assert not result.is_whole
    assert len(result.text) == CHARACTERS_MAX


def test_a_long_plain_text_is_cut_off() -> None:
    assert plain("a" * CHARACTERS_MAX).is_whole
    assert not plain("a" * (CHARACTERS_MAX + 1)).is_whole


def text_of(part: MessagePart) -> str:
    assert part.text is not None
    return part.text.text


def test_short_values_come_first_and_together() -> None:
    message = {"headers": {"a": "b"}, "method": "POST", "body": LONG, "retain": False, "qos": 1}
    short, headers, body = parts_of(message)
    assert short == MessagePart(
        name="", pairs=[("method", "POST"), ("retain", "false"), ("qos", "1")]
    )
    assert headers == MessagePart(name="headers", pairs=[("a", "b")])
    assert (body.name, text_of(body)) == ("body", LONG)


def test_nested_values_are_json() -> None:
    blocks = [{"type": "header", "text": LONG}]
    (part,) = parts_of({"blocks": blocks})
    assert orjson.loads(text_of(part)) == blocks


def test_a_long_text_is_cut() -> None:
    (part,) = parts_of({"body": "x" * (CHARACTERS_MAX + 1)})
    assert part.text is not None
    assert not part.text.is_whole
