"""Encodings in which an e-mail address is found, and longer addresses that are not."""

import json
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.store.email_matcher import EmailMatcher
from tests.spellings import SIGNS

ANN = EmailMatcher(" Ann@X.com ")


@pytest.mark.parametrize(
    "content",
    [
        b'{"email":"ann@x.com"}',
        b'{"email":"ANN@x.Com"}',
        b'{"email":"ann\\u0040x.com"}',
        b'{"email":"\\u0061\\u004E\\u006e\\u0040x\\u002ecom"}',
        b'{"text":"hello\\nann@x.com"}',
        b'{"url":"https:\\/\\/x.com\\/?email=ann%40x.com&b=1"}',
        b'{"inner":"{\\"email\\":\\"ann\\\\u0040x.com\\"}"}',
        b'{"inner":"\\"{\\\\\\"email\\\\\\":\\\\\\"ann\\\\\\\\u0040x.com\\\\\\"}\\""}',
        b"mailto:ann@x.com.",
        b"Ann <ann@x.com>, and others",
        b"'ann@x.com'",
        b"see...ann@x.com...",
        b"--ann@x.com",
        b"_to ann@x.com_",
        b"joann@x.com, ann@x.com.au, ann@x.com",
        b"<b>ann&#64;x.com</b>",
        b"<b>ann&#x40;x&period;com</b>",
        b"%20ann@x.com%20",
        b"\xff\xfe ann@x.com \xff",
        b"C:\\ann@x.com",
        "\ufeffann@x.com".encode("utf-16-le"),
        "ann@x.com".encode("utf-32"),
        "ann@x.com",
    ],
)
def test_an_address_is_found_in_every_encoding(content: bytes | str) -> None:
    assert ANN.stands_in(content)


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        b"joann@x.com",
        b"jo.ann@x.com",
        b"jo-ann@x.com",
        b"jo--ann@x.com",
        b"jo_ann@x.com",
        b"_ann@x.com",
        b"jo+ann@x.com",
        b"o'ann@x.com",
        b"ann+tag@x.com",
        b"ann@x.com.au",
        b"ann@x.community",
        b"ann@x.com-y.org",
        b"ann@xx.com",
        b"ann@ x.com",
        b'{"email":"jo\\u002eann@x.com"}',
        b'{"email":"jo\\u0061nn@x.com"}',
        b'{"email":"ann@x.com\\u002eau"}',
        b'{"email":"\\u00e9ann@x.com"}',
        "\u00e9ann@x.com".encode(),
    ],
)
def test_a_longer_address_is_another_persons(content: bytes | None) -> None:
    assert not ANN.stands_in(content)


@pytest.mark.parametrize(
    ("address", "content"),
    [
        ("o'brien@x.com", b"o&#39;brien@x.com"),
        ("bann@x.com", b"C:\\bann@x.com"),
        ("M\u00fcller@x.de", "mu\u0308LLER@x.de".encode()),
        (
            "\u043f\u043e\u0447\u0442\u0430@x.com",
            b'{"email":"\\u043F\\u043e\\u0447\\u0442\\u0430@x.com"}',
        ),
        ("stra\u00dfe@x.com", b"STRASSE@x.com"),
        ("ann+tag@x.com", b"?email=ann%2Btag%40x.com"),
    ],
)
def test_unusual_addresses_are_found(address: str, content: bytes) -> None:
    assert EmailMatcher(address).stands_in(content)


@pytest.mark.parametrize("sign", SIGNS)
def test_the_sign_of_an_address_is_found_in_every_spelling(sign: str) -> None:
    assert ANN.stands_in(f"to ann{sign}x.com, twice")
    assert not ANN.stands_in(f"to joann{sign}x.com, twice")


def test_half_of_a_character_is_found_as_it_is_shown() -> None:
    assert EmailMatcher("zo\ufffd@x.com").stands_in(rb'{"email":"zo\ud83d@x.com"}')


@given(
    st.text(string.ascii_letters, min_size=1, max_size=12),
    st.text(max_size=20),
    st.data(),
)
def test_every_json_escape_is_found(local: str, name: str, data: st.DataObject) -> None:
    address = f"{local}@example.com"
    body = json.dumps({"name": name, "data": {"email": "@@"}})
    escaped = "".join(
        f"\\u{ord(each):04x}" if data.draw(st.booleans()) else each for each in address
    )
    assert EmailMatcher(address).stands_in(body.replace("@@", escaped).encode())


def test_a_long_body_takes_little_time() -> None:
    ANN.stands_in(b"." * 1_000_000 + b"'" * 1_000_000 + b"\\u0040" * 100_000)
