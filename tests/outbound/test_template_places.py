"""No value changes the structure of a JSON text or of a URL, whatever it holds."""

import json
import re
from collections.abc import Callable
from urllib.parse import parse_qs, quote, unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.core.errors import InvalidTemplate
from relay.core.event import Event
from relay.outbound.template import Template, Write
from relay.outbound.template_places import in_json, in_url


def rendered(source: str, write: Write, **data: object) -> str:
    body = json.dumps({"id": "evt_1", "event": "lead.captured", "data": data}).encode()
    came = Event(
        source="main", id="evt_1", kind="lead.captured", created_at=None, received_ms=0, body=body
    )
    return Template(source, write=write).render(came)


def document(source: str, **data: object) -> object:
    return json.loads(rendered(source, in_json, **data))


texts = st.text(max_size=60)


@given(texts)
def test_a_value_in_quotes_stays_a_text(text: str) -> None:
    source = '{"a": "{{ data.x }}", "b": ["<{{ data.x }}>", "\\\\{{ data.x }}"]}'
    assert document(source, x=text) == {"a": text, "b": [f"<{text}>", f"\\{text}"]}


@given(st.recursive(st.none() | st.booleans() | st.integers(0, 99) | texts, st.lists, max_leaves=9))
def test_a_value_outside_quotes_keeps_its_type(value: object) -> None:
    source = '{"a": {{ data.x | tojson }}, "b": [{{ [data.x] }}]}'
    assert document(source, x=value) == {"a": value, "b": [[value]]}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (75, 75),
        (1.5, 1.5),
        (True, True),
        (None, None),
        ({"a": [1]}, {"a": [1]}),
        ("75", 75),
        ("true", True),
        ('"x"', "x"),
        ("{}", {}),
        (" [] ", []),
    ],
)
def test_a_whole_json_value_may_stand_outside_quotes(value: object, expected: object) -> None:
    assert document('{"a":{{ data.x }}}', x=value) == {"a": expected}


@pytest.mark.parametrize(
    "text",
    ["Ada", "", ",", 'x", "admin": true', '{"admin": true}', "[1]", "NaN", "1 2", "1, 2", "01"],
)
def test_any_other_text_outside_quotes_is_refused(text: str) -> None:
    with pytest.raises(InvalidTemplate, match="a text stands outside quotes") as caught:
        rendered('{"a": {{ data.x }}}', in_json, x=text)
    assert "admin" not in str(caught.value)
    assert caught.value.__context__ is None


def test_loops_and_conditions_write_structure_by_literal_text() -> None:
    source = """[{% for name, value in data.fields | dictsort %}{% if not loop.first %},{% endif %}
      {"{{ name }}": {{ value | tojson }}, "on": {{ loop.first }}}{% endfor %}]"""
    fields = {'a"b': 'c"d', "e": 5}
    assert document(source, fields=fields) == [{'a"b': 'c"d', "on": True}, {"e": 5, "on": False}]


@pytest.mark.parametrize(
    "source",
    [
        '{"a": "\\{{ data.x }}"}',
        '{"a": "\\{% if true %}{{ data.x }}{% endif %}"}',
        '{"a": "\\\\\\{{ data.x }}"}',
    ],
)
def test_a_value_behind_a_backslash_is_refused(source: str) -> None:
    for text in ('"', "n", "x"):
        with pytest.raises(InvalidTemplate, match="behind a backslash"):
            rendered(source, in_json, x=text)


def test_escapes_of_the_author_end_no_quotes() -> None:
    source = r"""{"a": "\"{{ data.x }}\\", "b": "\{% if true %}"{% endif %}{{ data.x }}"}"""
    assert document(source, x='"') == {"a": '""\\', "b": '""'}


@given(texts.filter(lambda text: text and not {".", ".."} & set(re.split(r"[/\\]", text))))
def test_a_value_in_a_url_is_one_segment_or_one_parameter(text: str) -> None:
    source = "/v1/leads/{{ data.x }}/notes-{{ data.x }}?q={{ data.x }}&r=1"
    target = urlsplit(rendered(source, in_url, x=text))
    assert target.path.isascii()
    assert [unquote(part) for part in target.path.split("/")] == [
        *("", "v1", "leads", text, f"notes-{text}")
    ]
    assert parse_qs(target.query) == {"q": [text], "r": ["1"]}
    assert not target.fragment


@pytest.mark.parametrize("text", ["", ".", "..", "../../admin", "a/..", "a/./b", "a\\..\\b", "/."])
def test_a_value_that_would_fold_a_path_is_refused_there_only(text: str) -> None:
    for source in ("/leads/{{ data.x }}", "/leads/x{{ data.x }}?a", "/.{{ data.x }}/a"):
        with pytest.raises(InvalidTemplate, match="would stand in the path"):
            rendered(source, in_url, x=text)
    assert rendered("/leads?q={{ data.x }}", in_url, x=text) == f"/leads?q={quote(text, safe='')}"


def test_dots_and_slashes_that_fold_nothing_may_stand_in_a_path() -> None:
    assert rendered("/a/{{ data.x }}", in_url, x="a/b..c/...") == "/a/a%2Fb..c%2F..."


@pytest.mark.parametrize("literal", ["/a%", "/a%2", "/a?b=%"])
def test_a_value_within_a_percent_encoded_character_is_refused(literal: str) -> None:
    with pytest.raises(InvalidTemplate, match="percent-encoded"):
        rendered(literal + "{{ data.x }}", in_url, x="2F")
    assert rendered("/%2F{{ data.x }}{{ data.x }}", in_url, x="ü") == "/%2F%C3%BC%C3%BC"


@pytest.mark.parametrize("write", [in_json, in_url])
def test_half_a_character_of_the_author_fails(write: Callable[..., object]) -> None:
    with pytest.raises(InvalidTemplate, match="it fails with"):
        Template("\"{{ '\\ud83d' }}\"", write=write).render(  # type: ignore[arg-type]
            Event(source="m", id="1", kind="k", created_at=None, received_ms=0, body=b"{}")
        )
