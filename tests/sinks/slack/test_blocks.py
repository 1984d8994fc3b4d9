"""Text objects and tables: none is empty, none is too long, whatever goes in."""

import pytest

from relay.outbound.template import Value
from relay.sinks.slack import escaping
from relay.sinks.slack.blocks import describe, fact, plain, table
from relay.sinks.slack.escaping import clean, cut


@pytest.mark.parametrize("text", ["", " ", "\n", "\u200b\u3164"])
def test_a_text_object_is_never_empty(text: str) -> None:
    assert plain(text)["text"] == "-"


@pytest.mark.parametrize("label", ["", "**", "\u200b", "`_`"])
def test_a_field_without_a_name_has_a_label(label: str) -> None:
    (grid,) = table(fact(label, "CTO"))
    assert [cell["text"] for cell in grid["fields"]] == ["*-*", "CTO"]


@pytest.mark.parametrize("value", [None, "", " ", [], {}, "\u202e"])
def test_an_empty_value_is_not_shown(value: object) -> None:
    assert fact("Company", value) == []


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, "yes"),
        (False, "no"),
        (0, "0"),
        (1.5, "1.5"),
        (["a", 1, None], "a, 1,"),
        ({"a": [1]}, '{"a":[1]}'),
        ([{"a": 1}], '[{"a":1}]'),
        (" a \n b\t", "a b"),
    ],
)
def test_a_value_reads_as_a_person_would_write_it(value: object, expected: str) -> None:
    assert describe(value, limit=100) == expected


@pytest.mark.parametrize(
    ("text", "limit", "expected"),
    [
        ("abc", 3, "abc"),
        ("abcd", 3, "ab…"),
        ("ab cd", 4, "ab…"),
        ("a&b", 6, "a…"),
        ("a&b", 7, "a&b"),
        ("😀😀", 4, "😀😀"),
        ("😀😀", 3, "😀…"),
    ],
)
def test_a_cut_counts_what_slack_might_count(text: str, limit: int, expected: str) -> None:
    assert cut(text, limit) == expected
    assert len("".join(escaping.mrkdwn([Value(cut(text, limit))]))) <= limit


def test_cleaning_reads_a_huge_text_only_as_far_as_it_shows() -> None:
    assert clean("x " * 500_000, limit=10) == "x x x x x…"
