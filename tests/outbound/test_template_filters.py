"""The filters of templates that Jinja lacks."""

import hashlib
import json
from uuid import UUID

import pytest

from relay.core.errors import InvalidTemplate
from relay.core.event import Event
from relay.outbound.template import Template
from relay.outbound.template_environment import GROWN_MAX
from relay.outbound.visible_text import in_markdown, one_line


def rendered(source: str, **data: object) -> str:
    body = json.dumps({"id": "evt_1", "event": "lead.captured", "data": data}).encode()
    came = Event(
        source="main", id="evt_1", kind="lead.captured", created_at=None, received_ms=0, body=body
    )
    return Template(source).render(came)


@pytest.mark.parametrize(
    ("value", "length", "expected"),
    [
        ("Ada Moreau", 10, "Ada Moreau"),
        ("Ada Moreau", 9, "Ada More…"),
        ("Ada Moreau", 1, "…"),
        ("Ada Moreau", 0, ""),
        ("👋🏽" * 4, 3, "👋🏽…"),
        (12_345, 3, "12…"),
        (True, 9, "true"),
        ([1, 2], 9, "[1,2]"),
        (None, 3, ""),
    ],
)
def test_cut_shortens_any_value_to_a_number_of_characters(
    value: object, length: int, expected: str
) -> None:
    assert rendered(f"{{{{ data.x | cut({length}) }}}}", x=value) == expected


def test_cut_takes_another_end_and_goes_with_a_default() -> None:
    assert rendered("{{ data.x | cut(3, '') }}{{ data.x | cut(2, '...') }}", x="abcd") == "abc.."
    assert rendered("{{ data.a.b | default('nothing') | cut(4) }}") == "not…"
    with pytest.raises(InvalidTemplate, match="a is missing"):
        rendered("{{ data.a | cut(4) }}")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2026-03-02T09:30:00.000Z", "2026-03-02 09:30"),
        ("2026-03-02t11:30:00+02:00", "2026-03-02 09:30"),
        ("2026-03-02 09:30", "2026-03-02 09:30"),
        (" 2026-03-02 ", "2026-03-02 00:00"),
        ("9999-12-31T23:59:59-05:00", "9999-12-31T23:59:59-05:00"),
        ("next week", "next week"),
        ("", ""),
        (None, ""),
        (1_772_443_800, "1772443800"),
    ],
)
def test_date_writes_a_time_in_utc_and_anything_else_as_it_is(value: object, expected: str) -> None:
    assert rendered("{{ data.x | date }}", x=value) == expected


def test_date_takes_a_format() -> None:
    at = "2026-03-02T09:30:00Z"
    assert rendered("{{ data.x | date('%d.%m.%Y') }}", x=at) == "02.03.2026"
    for hostile in ("%99999999Y", "%c" * 60_000):
        try:
            assert len(rendered("{{ (data.x | date(data.y))[:9] }}", x=at, y=hostile)) <= 9
        except InvalidTemplate as error:
            assert str(GROWN_MAX) in str(error)  # noqa: PT017  either is right


def test_sha256_is_that_of_the_text_in_utf_8() -> None:
    expected = hashlib.sha256("zoë@example.com".encode()).hexdigest()
    assert rendered("{{ data.x | sha256 }}", x="zoë@example.com") == expected
    assert rendered("{{ data.x | lower | sha256 }}", x="ZOË@example.com") == expected
    assert rendered("{{ data.x | sha256 }}", x=12) == hashlib.sha256(b"12").hexdigest()
    assert len(rendered("{{ '\\ud83d' | sha256 }}")) == 64


def test_uuid_is_the_same_for_the_same_text() -> None:
    first, again, other = (rendered("{{ data.x | uuid }}", x=x) for x in ("a", "a", "b"))
    assert first == again != other
    assert UUID(first).version == 5
    assert UUID(rendered("{{ '\\ud83d' | uuid }}")).version == 5


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Ada", "Ada"),
        ("**bold** _x_ `code`", r"\*\*bold\*\* \_x\_ \`code\`"),
        ("[Refund](https://evil.example)", r"\[Refund\]\(https\:\/\/evil\.example\)"),
        ("@everyone <@1>", r"\@everyone \<\@1\>"),
        ("a\n# b\r\n\tc", r"a \# b c"),
        ("\u202egnp\u200b.exe\x00", r"gnp\.exe"),
        ("漢字 \U0001fae9 \u3164", "漢字 \U0001fae9"),
    ],
)
def test_markdown_shows_a_value_as_it_is_on_one_line(text: str, expected: str) -> None:
    assert rendered("{{ data.x | markdown }}", x=text) == in_markdown(text) == expected


def test_one_line_keeps_what_is_visible() -> None:
    assert rendered("{{ data.x | one_line }}", x=" Ada\r\n\u202eB*") == "Ada B*"
    assert rendered("{{ data.x | one_line }}", x=None) == ""
    assert one_line("  plain\ttext\n") == "plain text"
    assert one_line("a\u2800\u2028b \ue000") == "a b \ue000"


@pytest.mark.parametrize("name", ["markdown", "one_line", "sha256", "uuid"])
def test_what_a_filter_does_is_bounded_over_one_rendering(name: str) -> None:
    source = f"{{% for i in range(5000) %}}{{% set x = data.x | {name} %}}{{% endfor %}}"
    with pytest.raises(InvalidTemplate, match="it makes more than"):
        rendered(source, x="x" * 200_000)


def test_a_filter_takes_no_value_without_a_text() -> None:
    for name in ("cut(3)", "date", "markdown", "one_line", "sha256", "uuid"):
        with pytest.raises(InvalidTemplate, match="it outputs what has no text"):
            rendered(f"{{{{ range | {name} }}}}")
