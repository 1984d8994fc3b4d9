"""JSON of others: halves of characters and huge numbers are read, and faults stay faults."""

import json
import sys
import time
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.core import foreign_json

LARGEST = sys.float_info.max
ALLOWED_S = 3.0


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (rb'"Zo\ud83d"', "Zo\ufffd"),
        (rb'"\uDE00x"', "\ufffdx"),
        (rb'"\ud83d\ud83d\ude00"', "\ufffd\U0001f600"),
        (rb'"\ude00\ud83d"', "\ufffd\ufffd"),
        (rb'"\ud83d\ude00 \ud83d"', "\U0001f600 \ufffd"),
        (rb'"\\ud83d"', r"\ud83d"),
        (rb'"\\\ud83d"', "\\\ufffd"),
        (rb'"\\\\ud83d \ud83d"', r"\\ud83d" + " \ufffd"),
        (rb'"\n\ud83d\n"', "\n\ufffd\n"),
        (rb'{"a\ud83d":["\ud83d"]}', {"a\ufffd": ["\ufffd"]}),
        (rb'["\ud83d",1e400]', ["\ufffd", LARGEST]),
        (b"-1e400", -LARGEST),
        (b"9" * 400, LARGEST),
        (b"[" + b"9" * 250 + b"E99]", [LARGEST]),
        (b'["1e400",1E+999]', ["1e400", LARGEST]),
        (rb'["\"1e400\\",1e999]', ['"1e400\\', LARGEST]),
        (b"1e-400", 0.0),
        (b"18446744073709551616", 2.0**64),
    ],
)
def test_all_that_is_json_is_read(text: bytes, value: Any) -> None:
    assert foreign_json.decode(text) == value
    assert orjson.loads(orjson.dumps(foreign_json.decode(text))) == value


@pytest.mark.parametrize(
    "text",
    [
        *(b"NaN", b"Infinity", b"-Infinity", b"[1e400,NaN]", b"", b"{", b'"\xed\xa0\xbd"'),
        *(rb'["\ud83d', rb'"\ud83"', rb'"\ud83d\x"', rb"\ud83d", b"1e400e5", b"01e400", b"1e400."),
        *(b"[" * 5000 + b"1e400" + b"]" * 5000, b"\xff1e400", b'"1e400', b"--1e400"),
    ],
)
def test_what_is_no_json_is_refused(text: bytes) -> None:
    with pytest.raises(orjson.JSONDecodeError):
        foreign_json.decode(text)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
        max_leaves=12,
    )
)
def test_whatever_a_sender_writes_can_be_read_and_encoded(value: Any) -> None:
    for escaped in (True, False):
        text = json.dumps(value, ensure_ascii=escaped).encode(errors="surrogatepass")
        if b"Infinity" not in text and (escaped or foreign_json.whole(str(value)) == str(value)):
            orjson.dumps(foreign_json.decode(text))


@given(st.text(st.characters()))
def test_a_text_is_read_as_it_is_written_but_for_halves(text: str) -> None:
    assert foreign_json.decode(json.dumps(text).encode()) == foreign_json.whole(
        json.loads(json.dumps(text))
    )


@pytest.mark.parametrize(
    "part",
    [rb"\ud83d", rb"\\", rb"\"", b"1e400,", b"9", rb"\ud83d\ude00", b'"', b"a", rb"\u", b"-"],
)
def test_a_long_text_of_a_stranger_takes_little_time(part: bytes) -> None:
    for text in (part * ((1 << 20) // len(part)), b'["' + part * ((1 << 20) // len(part))):
        before_s = time.thread_time()
        with pytest.raises(orjson.JSONDecodeError):
            foreign_json.decode(text + rb"\ud83d 1e400")
        assert time.thread_time() - before_s < ALLOWED_S
