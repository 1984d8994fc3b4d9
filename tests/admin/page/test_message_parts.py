"""The parts of a sink's message as a page shows them."""

import orjson
import pytest

from relay.admin.page.views import message_parts
from relay.admin.page.views.message_parts import Part, parts_of

LONG = "x" * 100


def test_short_values_come_first_and_together() -> None:
    message = {"headers": {"a": "b"}, "method": "POST", "body": LONG, "retain": False, "qos": 1}
    assert list(parts_of(message)) == [
        Part("", "", [("method", "POST"), ("retain", "false"), ("qos", "1")], is_cut=False),
        Part("headers", "", [("a", "b")], is_cut=False),
        Part("body", LONG, (), is_cut=False),
    ]


def test_nested_values_are_json() -> None:
    blocks = [{"type": "header", "text": LONG}]
    (part,) = parts_of({"blocks": blocks, "none": {}})
    assert orjson.loads(part.text) == blocks


def test_a_long_text_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_parts, "SHOWN_MAX", 80)
    assert list(parts_of({"body": LONG})) == [Part("body", LONG[:80], (), is_cut=True)]
