"""Leads as strangers fill them in, and as no sender should send them."""

import json
from collections.abc import Iterator
from random import Random

from relay.core.event import LEAD_CAPTURED, Event

_PIECES = (
    *(
        '"',
        "'",
        "\\",
        "\\\\",
        '\\"',
        "/",
        "//",
        "?",
        "#",
        "&",
        "=",
        "%",
        "%2f",
        "%2e%2e",
        ";",
        "\0",
    ),
    *(
        "\n",
        "\r\n",
        "\t",
        "\u2028",
        "\x1b[2J",
        "\u202e",
        "\u200f",
        "\ufeff",
        "\u0301",
        "\ud83d",
        "\udc00",
    ),
    *("Ada", "Zoë", "李 明", "مرحبا", "👩‍👩‍👧", "🏳️‍🌈", "x" * 300, " ", ""),
    *(
        "</script><b>",
        "<!channel>",
        "@everyone",
        "*bold*",
        "[a](https://evil.example)",
        "{{ 7 * 7 }}",
    ),
    *(
        "{% raw %}",
        "${HOME}",
        '", "admin": true, "x": "',
        '"}], "admin": [{"x": "',
        "\r\nx-admin: yes",
    ),
)
_WHOLE = (
    *(
        "",
        ".",
        "..",
        "...",
        "/",
        "../../admin",
        "..%2fadmin",
        "?admin=1",
        "#",
        "123",
        "true",
        "null",
    ),
    *('{"admin": true}', '[{"admin": true}]', '"admin"', "1e999", "-", "👋" * 9_000, "x" * 60_000),
)
_VALUES: tuple[object, ...] = (
    None,
    True,
    False,
    0,
    75,
    -1.5,
    1e300,
    [],
    {},
    ["x", {"admin": True}],
    {"admin": True},
)


def hostile_leads(count: int) -> Iterator[Event]:
    """Yield the same leads each time; some lack what most have, or have it of another type."""
    random = Random(36)
    for number in range(count):
        data = {name: _value(random) for name in ("id", "name", "email", "progress", "message")}
        data["fields"] = {_text(random): _value(random) for _ in range(random.randrange(4))}
        for name in random.sample(sorted(data), random.choice((0, 0, 0, 1, 2))):
            del data[name]
        yield Event(
            source="main",
            id=f"evt_{number}",
            kind=LEAD_CAPTURED,
            created_at=None,
            received_ms=1_772_443_800_000 + number,
            body=_json({"id": f"evt_{number}", "event": LEAD_CAPTURED, "data": data}),
        )


def _json(document: object) -> bytes:
    # With escapes, because JSON has no other way to write half of a character.
    return json.dumps(document).encode()


def _value(random: Random) -> object:
    match random.randrange(10):
        case 0:
            return random.choice(_VALUES)
        case 1 | 2:
            return random.choice(_WHOLE)
    return _text(random)


def _text(random: Random) -> str:
    return "".join(random.choices(_PIECES, k=random.randrange(6)))
