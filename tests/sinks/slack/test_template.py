"""Own messages: the operator's structure stays, values are escaped for where they stand."""

from datetime import UTC, datetime
from typing import Any

import pytest

from relay.core.errors import InvalidTemplate
from relay.sinks.slack.template import OwnMessage
from tests.sinks.slack.limits import harmless
from tests.sinks.slack.test_message import HOSTILE, event

ADA = event("lead.captured", {"name": "A & <B>", "id": "v/1?x", "none": None, "n": 3})


def own(block: dict[str, Any]) -> dict[str, Any]:
    payload = OwnMessage(blocks=[block]).render(ADA)
    first: dict[str, Any] = payload["blocks"][0]
    return first


def mrkdwn(text: str) -> dict[str, Any]:
    return {"type": "section", "text": {"type": "mrkdwn", "text": text}}


def test_a_text_is_mrkdwn_of_the_author_with_escaped_values() -> None:
    payload = OwnMessage(text="<!here> *{{ data.name }}*").render(ADA)
    assert payload["text"] == "<!here> *A &amp; &lt;B&gt;*"
    assert payload["blocks"][0]["text"]["text"] == payload["text"]


def test_blocks_and_text_go_together_and_the_event_id_comes_last() -> None:
    payload = OwnMessage(text="{{ event }}", blocks=[{"type": "divider"}]).render(ADA)
    assert payload["text"] == "lead.captured"
    assert payload["blocks"][0] == {"type": "divider"}
    assert payload["blocks"][1]["elements"][-1]["text"] == "Event evt_1"


def test_blocks_without_a_text_get_our_line_for_notifications() -> None:
    payload = OwnMessage(blocks=[{"type": "divider"}]).render(ADA)
    assert payload["text"] == "New lead: A &amp; &lt;B&gt;"


def test_values_are_escaped_for_the_object_that_contains_them() -> None:
    block = {
        "type": "section",
        "text": {"type": "mrkdwn", "text": "*{{ data.name }}*"},
        "fields": [{"type": "plain_text", "text": "{{ data.name }}", "emoji": True}],
        "accessory": {
            "type": "button",
            "text": {"type": "plain_text", "text": "Open"},
            "url": "https://app.example.com/videos/{{ data.id }}?a=1&b=2",
        },
    }
    assert own(block) == {
        "type": "section",
        "text": {"type": "mrkdwn", "text": "*A &amp; &lt;B&gt;*", "verbatim": True},
        "fields": [{"type": "plain_text", "text": "A & <B>", "emoji": True}],
        "accessory": {
            "type": "button",
            "text": {"type": "plain_text", "text": "Open"},
            "url": "https://app.example.com/videos/v%2F1%3Fx?a=1&b=2",
        },
    }


def test_values_other_than_text_keep_their_type() -> None:
    assert own({"type": "section", "expand": True, "n": 1, "x": 0.5, "l": [1]}) == {
        "type": "section",
        "expand": True,
        "n": 1,
        "x": 0.5,
        "l": [1],
    }


def test_an_author_can_ask_for_links_of_bare_addresses() -> None:
    block = {"type": "section", "text": {"type": "mrkdwn", "text": "x", "verbatim": False}}
    assert own(block)["text"]["verbatim"] is False


def test_an_empty_value_makes_no_empty_text() -> None:
    assert own(mrkdwn("{{ data.none }}"))["text"]["text"] == "-"


@pytest.mark.parametrize(("kind", "limit"), [("header", 150), ("section", 3000), ("button", 75)])
def test_a_plain_text_is_cut_to_what_its_place_takes(kind: str, limit: int) -> None:
    text = {"type": "plain_text", "text": "{{ data.name * 600 }}{{ data.name * 600 }}" * 4}
    shown = own({"type": kind, "text": text})["text"]["text"]
    assert len(shown) <= limit
    assert shown.endswith("…")


@pytest.mark.parametrize("shift", range(12))
def test_mrkdwn_is_cut_neither_in_an_entity_nor_in_a_link(shift: int) -> None:
    entities = own(mrkdwn("x" * shift + "{{ '<' }}" * 1000))["text"]["text"]
    links = own(mrkdwn("x" * shift + "<https://a.example|b>" * 200))["text"]["text"]
    harmless(entities)
    assert len(entities) <= 3000
    assert links.count("<") == links.count(">")
    assert len(links) <= 3000


@pytest.mark.parametrize("row", HOSTILE)
def test_nothing_that_a_stranger_types_acts_in_an_own_template(row: str) -> None:
    odd = event("lead.captured", {"name": HOSTILE[row]})
    payload = OwnMessage(text="Lead: {{ data.name }}").render(odd)
    harmless(payload["text"])
    assert "\n" not in payload["text"]
    assert payload["blocks"][0]["text"]["verbatim"] is True


WAYS = {
    "as it is": "{{ data.name }}",
    "joined to a set": "{% set hi %}Lead: {% endset %}{{ hi ~ data.name }}",
    "in a set": "{% set hi %}Lead: {{ data.name }}{% endset %}{{ hi }}",
    "by %": "{% set hi %}Lead: %s{% endset %}{{ hi % data.name }}",
    "by format": "{% set hi %}Lead: {}{% endset %}{{ hi.format(data.name) }}",
    "by the filter format": "{{ 'Lead: %s' | format(data.name) }}",
    "by replace": "{% set hi %}Lead: X{% endset %}{{ hi | replace('X', data.name) }}",
    "by join": "{% set mark %}: {% endset %}{{ ['Lead', data.name] | join(mark) }}",
    "by a macro": "{% macro lead(v) %}Lead: {{ v }}{% endmacro %}{{ lead(data.name) }}",
    "by a call": (
        "{% macro lead() %}{{ caller() }}{% endmacro %}"
        "{% call lead() %}{{ data.name }}{% endcall %}"
    ),
    "by a filter block": "{% filter trim %}{{ data.name }}{% endfilter %}",
    "by a recursive loop": "{% for v in [data.name] recursive %}{{ v }}{% endfor %}",
    "by tojson": "{{ data.name | tojson }}",
}
"""To write a stranger's name into a text."""


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("row", HOSTILE)
def test_no_spelling_of_a_value_bypasses_the_cleaning(row: str, way: str) -> None:
    odd = event("lead.captured", {"name": HOSTILE[row]})
    shown = OwnMessage(text="New: " + WAYS[way]).render(odd)["text"]
    harmless(shown)
    assert "\n" not in shown
    assert "\u202e" not in shown


@pytest.mark.parametrize("way", WAYS)
def test_an_apostrophe_stays_one(way: str) -> None:
    lead = event("lead.captured", {"name": "Ada O'Brien"})
    assert "Ada O'Brien" in OwnMessage(text=WAYS[way]).render(lead)["text"]


@pytest.mark.parametrize("way", WAYS)
def test_a_value_in_a_url_is_percent_encoded(way: str) -> None:
    lead = event("lead.captured", {"name": "a&admin=1#x"})
    button = {"type": "button", "url": "https://crm.example/?q=" + WAYS[way]}
    payload = OwnMessage(blocks=[{"type": "actions", "elements": [button]}]).render(lead)
    assert "a%26admin%3D1%23x" in payload["blocks"][0]["elements"][0]["url"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "<https://crm.example/?q={{ data.v }}|Open in CRM>",
            "<https://crm.example/?q=a%7CPay%20here%3E%3C%21here%3E|Open in CRM>",
        ),
        ("<https://a.example|{{ data.v }}>", "<https://a.example|a|Pay here&gt;&lt;!here&gt;>"),
        (
            "<https://a.example|x> {{ data.v }}",
            "<https://a.example|x> a|Pay here&gt;&lt;!here&gt;",
        ),
        ("<@{{ data.v }}>", "<@a%7CPay%20here%3E%3C%21here%3E>"),
        (
            "<{% if data.v %}https://a.example/{% endif %}{{ data.v }}|x>",
            "<https://a.example/a%7CPay%20here%3E%3C%21here%3E|x>",
        ),
    ],
)
def test_a_value_in_a_link_can_choose_neither_address_nor_label(text: str, expected: str) -> None:
    lead = event("lead.captured", {"v": "a|Pay here><!here>"})
    assert OwnMessage(text=text).render(lead)["text"] == expected


def test_a_markdown_block_takes_values_as_text() -> None:
    lead = event("lead.captured", {"v": "[x](https://evil.example) *a* <!here>"})
    text = "**Lead** {{ data.v }} [CRM](https://crm.example/{{ data.v }}) {{ data.v }}"
    payload = OwnMessage(blocks=[{"type": "markdown", "text": text}]).render(lead)
    value = r"\[x\]\(https\:\/\/evil\.example\) \*a\* \<\!here\>"
    encoded = "%5Bx%5D%28https%3A%2F%2Fevil.example%29%20%2Aa%2A%20%3C%21here%3E"
    assert payload["blocks"][0]["text"] == (
        f"**Lead** {value} [CRM](https://crm.example/{encoded}) {value}"
    )


@pytest.mark.parametrize(("key", "limit"), [("value", 2000), ("block_id", 255), ("alt_text", 2000)])
def test_values_other_than_text_are_escaped_and_fit(key: str, limit: int) -> None:
    lead = event("lead.captured", {"v": "<&>" * 900})
    shown = OwnMessage(blocks=[{"type": "x", key: "{{ data.v }}" * 9}]).render(lead)["blocks"][0][
        key
    ]
    assert shown.startswith("<&>")
    assert len(shown) <= limit


@pytest.mark.parametrize("value", [datetime(2026, 1, 1, tzinfo=UTC), None])
def test_a_date_in_the_toml_is_named(value: object) -> None:
    with pytest.raises(InvalidTemplate, match=r"blocks\[0\]\.when: Slack's blocks hold"):
        OwnMessage(blocks=[{"type": "section", "when": value}])


def test_an_own_message_that_grows_too_long_is_refused() -> None:
    message = OwnMessage(blocks=[mrkdwn("{{ (data.name * 200)[:2000] }}") for _ in range(12)])
    with pytest.raises(InvalidTemplate, match="blocks: longer than"):
        message.render(ADA)
