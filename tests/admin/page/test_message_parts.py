"""The parts of a sink's message as a page shows them."""

import orjson

from relay.admin.page.text.json_text import CHARACTERS_MAX
from relay.admin.page.text.message_parts import Part, parts_of

LONG = "x" * 200


def text_of(part: Part) -> str:
    assert part.text is not None
    return part.text.text


def test_short_values_come_first_and_together() -> None:
    message = {"headers": {"a": "b"}, "method": "POST", "body": LONG, "retain": False, "qos": 1}
    short, headers, body = parts_of(message)
    assert short == Part(name="", pairs=[("method", "POST"), ("retain", "false"), ("qos", "1")])
    assert headers == Part(name="headers", pairs=[("a", "b")])
    assert (body.name, text_of(body)) == ("body", LONG)


def test_nested_values_are_json() -> None:
    blocks = [{"type": "header", "text": LONG}]
    (part,) = parts_of({"blocks": blocks})
    assert orjson.loads(text_of(part)) == blocks


def test_a_long_text_is_cut() -> None:
    (part,) = parts_of({"body": "x" * (CHARACTERS_MAX + 1)})
    assert part.text is not None
    assert not part.text.is_whole
