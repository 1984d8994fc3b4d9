"""A signature header is verified strictly, or rejected with one of six reasons."""

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from relay.core import signature
from relay.core.errors import Rejected
from relay.core.signature import Verified
from tests.receiver.hostile import HEADERS, NUL, Odd, Sender

NOW_S = 1_772_443_800
TOLERANCE_MS = 300_000
GOOD = Sender(b"the-secret-of-the-tests", NOW_S, b'{"id":"evt_1"}')


def verify(
    *values: bytes,
    body: bytes = GOOD.body,
    secrets: tuple[bytes, ...] = (GOOD.secret,),
    now_s: int = NOW_S,
) -> Verified:
    return signature.verify(values, body, secrets=secrets, now_s=now_s, tolerance_ms=TOLERANCE_MS)


def reason(*values: bytes, body: bytes = GOOD.body, now_s: int = NOW_S) -> str | None:
    """Return the reason of a rejection, None for a valid header; other errors propagate."""
    try:
        verify(*values, body=body, now_s=now_s)
    except Rejected as rejected:
        return rejected.reason
    return None


@pytest.mark.parametrize("odd", [*HEADERS, NUL], ids=lambda odd: odd.id)
def test_an_odd_header_has_the_result_in_the_table(odd: Odd) -> None:
    assert reason(*odd.lines(GOOD)) == odd.reason


def test_the_digest_equals_that_of_openssl() -> None:
    # printf '1772443800.{"id":"evt_1"}' | openssl dgst -sha256 -hmac the-secret-of-the-tests
    digest = b"48ec8ec97330a23eaf7cf865acf97494908ac656d87b4e787ae43faa8f864fdb"
    assert signature.sign(GOOD.secret, b"1772443800", b'{"id":"evt_1"}') == digest
    header = signature.header(GOOD.secret, now_s=NOW_S, body=GOOD.body)
    assert header == f"t=1772443800,v1={digest.decode()}"


@pytest.mark.parametrize(
    ("off_s", "expected"),
    [(0, None), (300, None), (-300, None), (301, "stale"), (-301, "future"), (10**9, "stale")],
)
def test_the_tolerance_is_the_same_both_ways_and_its_edge_passes(
    off_s: int, expected: str | None
) -> None:
    assert reason(GOOD.good, now_s=NOW_S + off_s) == expected


def test_the_skew_is_our_time_less_the_senders() -> None:
    assert verify(GOOD.good, now_s=NOW_S + 7) == Verified(secret=0, skew_s=7)
    assert verify(GOOD.good, now_s=NOW_S - 7).skew_s == -7


@pytest.mark.parametrize("off_s", [400, -400])
def test_a_signature_outside_the_tolerance_has_its_skew(off_s: int) -> None:
    with pytest.raises(Rejected) as caught:
        verify(GOOD.good, now_s=NOW_S + off_s)
    assert caught.value.skew_s == off_s


def test_any_secret_verifies_and_the_matching_one_is_returned() -> None:
    secrets = (b"another-secret", GOOD.secret, b"a-third-secret")
    assert verify(GOOD.good, secrets=secrets).secret == 1


def test_a_header_with_an_old_and_a_new_signature_verifies_under_either_secret() -> None:
    new = GOOD._replace(secret=b"the-new-secret")
    both = b"%b,v1=%b" % (GOOD.good, new.v1)
    assert verify(both, secrets=(GOOD.secret,)).secret == 0
    assert verify(both, secrets=(new.secret,)).secret == 0


def test_without_a_secret_nothing_verifies() -> None:
    with pytest.raises(Rejected, match="mismatch"):
        verify(GOOD.good, secrets=())


def test_a_bad_signature_is_never_called_stale() -> None:
    assert reason(b"t=1,v1=" + b"0" * 64) == "mismatch"


@given(st.lists(st.binary(max_size=200), max_size=3))
def test_no_header_raises_anything_but_rejected(values: list[bytes]) -> None:
    assert reason(*values) is not None


@given(
    st.lists(
        st.sampled_from(
            [b"t", b"v1", b"v0", b"=", b",", b" ", b"1", b"a" * 64, b"0" * 64, b"\xff"]
        ),
        max_size=40,
    )
)
def test_no_header_of_likely_pieces_verifies(pieces: list[bytes]) -> None:
    assert reason(b"".join(pieces)) is not None


@given(secret=st.binary(min_size=1), body=st.binary(), now_s=st.integers(1, 10**12 - 1))
def test_a_signed_body_verifies(secret: bytes, body: bytes, now_s: int) -> None:
    header = signature.header(secret, now_s=now_s, body=body).encode()
    assert verify(header, body=body, secrets=(secret,), now_s=now_s) == Verified(0, 0)


@given(body=st.binary(min_size=1), at=st.integers(min_value=0), bit=st.integers(0, 7))
def test_any_changed_bit_of_the_body_is_a_mismatch(body: bytes, at: int, bit: int) -> None:
    sender = GOOD._replace(body=body)
    changed = bytearray(body)
    changed[at % len(body)] ^= 1 << bit
    assert reason(sender.good, body=body) is None
    assert reason(sender.good, body=bytes(changed)) == "mismatch"


@given(secret=st.binary(min_size=1))
def test_another_secret_is_a_mismatch(secret: bytes) -> None:
    # HMAC pads a key with zeros, so keys that differ only in trailing zeros are equal.
    assume(secret.rstrip(b"\0") != GOOD.secret)
    assert reason(GOOD._replace(secret=secret).good) == "mismatch"


@given(
    at=st.integers(0, len(GOOD.good)),
    cut=st.integers(0, 3),
    put=st.binary(max_size=3) | st.sampled_from([b",", b", ", b"=", b",v1=", b",t=", b",x=y"]),
)
@example(at=0, cut=0, put=b"")
def test_a_good_header_that_is_changed_anywhere_is_the_same_or_rejected(
    at: int, cut: int, put: bytes
) -> None:
    changed = GOOD.good[:at] + put + GOOD.good[at + cut :]
    try:
        parsed = signature.parse(changed)
        verified = verify(changed)
    except Rejected:
        return
    assert verified == Verified(0, 0)
    assert (parsed.timestamp, GOOD.v1 in parsed.candidates) == (GOOD.t, True)
