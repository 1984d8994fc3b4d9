"""Addresses are found in every spelling."""

import re
import time

import pytest

from relay.core.addresses import ADDRESS, AT, plain
from tests.spellings import ADDRESSES, SIGNS

ALLOWED_S = 1.0
LENGTH = 1 << 20


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("around", ["{}", "to {}, twice", "<{}>", "({})", "mailto:{}.", "[{}];"])
def test_a_whole_address_is_found_in_every_spelling(around: str, address: str) -> None:
    assert ADDRESS.sub("#", around.format(address)) == around.format("#")
    assert plain(address) == re.sub("|".join(map(re.escape, SIGNS[::-1])), "@", address)


@pytest.mark.parametrize("sign", SIGNS)
def test_the_sign_alone_is_known_in_every_spelling(sign: str) -> None:
    assert AT.search(f"ada{sign}example") is not None


@pytest.mark.parametrize(
    "text",
    [
        "no address @ all",
        "it is Ada's own",
        "limit=404.html",
        "amount=40",
        "100%4 of a",
        "\\u0041a",
        "&#640;a",
        "#64; a",
        "a&b=c",
    ],
)
def test_other_texts_hold_no_address(text: str) -> None:
    assert ADDRESS.search(text) is None


def test_every_address_of_a_list_is_found() -> None:
    text = '\'ada@x.com\';"bob@y.com",o\'brien@z.com {"email":"eve@w.com"}'
    assert ADDRESS.sub("#", text) == '\'#\';"#",# {"email":"#"}'


@pytest.mark.parametrize(
    "part",
    [
        *("a", "@", "%40", "%4", "%25", '"', '"a', "a@", "a.", "a'", "&amp;", "&aa;", "\\", "="),
        *("\\u0040", "a@.", "a@[", "=40", "&#0", "%", ".", "a@a'"),
    ],
)
def test_a_long_text_of_a_stranger_takes_little_time(part: str) -> None:
    text = part * (LENGTH // len(part))
    before_s = time.thread_time()
    ADDRESS.sub("#", text)
    plain(text)
    assert time.thread_time() - before_s < ALLOWED_S
