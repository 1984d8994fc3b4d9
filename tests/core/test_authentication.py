"""A request becomes an event or an unreadable one, or is rejected."""

import gzip
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.core import authentication, signature
from relay.core.authentication import Headers, SigningSecret, SourceSettings, authenticate
from relay.core.config_values import Moment, Secret
from relay.core.errors import Rejected
from relay.core.event import Event, Unreadable
from tests.conftest import NOW_MS
from tests.receiver.hostile import READABLE, UNREADABLE, Body

NAME = b"service-signature"
SECRET = b"the-secret-of-the-tests"
SOURCE = SourceSettings(
    name="main", path="/webhooks", secrets=(SigningSecret(secret=Secret(SECRET.decode())),)
)
BODY = b'{"id":"evt_1","event":"video.ready","createdAt":"2026-03-02T09:30:00.000Z","data":{}}'


def signed(body: bytes) -> bytes:
    return signature.header(SECRET, now_s=NOW_MS // 1000, body=body).encode()


HEADERS = [(NAME, signed(BODY))]


def content(body: bytes, *headers: tuple[bytes, bytes]) -> Event | Unreadable:
    """Authenticate a correctly signed body."""
    return authenticate(SOURCE, [(NAME, signed(body)), *headers], body, now_ms=NOW_MS).content


def readable(body: bytes, *headers: tuple[bytes, bytes]) -> Event:
    event = content(body, *headers)
    assert isinstance(event, Event)
    return event


def reason(headers: Headers, body: bytes = BODY, *, now_ms: int = NOW_MS) -> str | None:
    try:
        authenticate(SOURCE, headers, body, now_ms=now_ms)
    except Rejected as rejected:
        return rejected.reason
    return None


def test_the_envelope_and_the_raw_bytes_become_an_event() -> None:
    assert readable(BODY, (b"user-agent", b"Service-Webhooks/1")) == Event(
        source="main",
        id="evt_1",
        kind="video.ready",
        created_at="2026-03-02T09:30:00.000Z",
        received_ms=NOW_MS,
        body=BODY,
        headers=NAME + b": " + signed(BODY) + b"\r\nuser-agent: Service-Webhooks/1\r\n",
    )


def test_the_clock_skew_is_returned() -> None:
    late = authenticate(SOURCE, [(NAME, signed(BODY))], BODY, now_ms=NOW_MS + 9_999)
    assert late.skew_s == 9


@pytest.mark.parametrize("odd", UNREADABLE, ids=lambda odd: odd.id)
def test_a_verified_body_without_an_event_is_kept_raw_with_the_reason(odd: Body) -> None:
    request = content(odd.body)
    assert isinstance(request, Unreadable)
    assert (request.source, request.received_ms, request.body) == ("main", NOW_MS, odd.body)
    assert request.reason == odd.reason


@pytest.mark.parametrize("body", READABLE.values(), ids=READABLE)
def test_an_unusual_event_is_an_event(body: bytes) -> None:
    event = readable(body)
    assert event.body == body
    assert event.document()["id"] == event.id


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param(BODY.replace(b"evt_1", b"evt_2"), id="29-one-byte"),
        pytest.param(BODY + b"\n", id="29-line-break-behind"),
        pytest.param(BODY.replace(b",", b", "), id="29-indented"),
        pytest.param(b"", id="29-nothing"),
    ],
)
def test_a_changed_body_is_a_mismatch(changed: bytes) -> None:
    assert reason([(NAME, signed(BODY))], changed) == "mismatch"


def test_29_line_ends_that_were_changed_are_a_mismatch() -> None:
    body = b'{"id":"evt_1",\r\n"event":"video.ready"}'
    assert reason([(NAME, signed(body))], body.replace(b"\r\n", b"\n")) == "mismatch"


def test_45_a_compressed_body_is_verified_as_received_and_never_inflated() -> None:
    inflated = gzip.compress(BODY)
    assert isinstance(content(inflated, (b"content-encoding", b"gzip")), Unreadable)
    assert reason([(NAME, signed(BODY)), (b"content-encoding", b"gzip")], inflated) == "mismatch"


@pytest.mark.parametrize(
    "type_",
    [b"", b"text/plain", b"application/json; charset=utf-16", b"multipart/form-data", b"\xff"],
)
def test_46_the_content_type_is_ignored(type_: bytes) -> None:
    assert readable(BODY, (b"content-type", type_)).id == "evt_1"


@pytest.mark.parametrize("name", ["service-signature", "SERVICE-SIGNATURE", "X-Video-Sig"])
def test_the_configured_header_name_is_taken_in_any_case(name: str) -> None:
    source = SourceSettings(name="a", path="/a", secrets=SOURCE.secrets, signature_header=name)
    headers = [(name.lower().encode(), signed(BODY))]
    assert authenticate(source, headers, BODY, now_ms=NOW_MS).skew_s == 0


def test_a_signature_in_another_header_is_missing() -> None:
    assert reason([(b"x-service-signature", signed(BODY))]) == "missing"


@pytest.mark.parametrize(
    ("off_ms", "expected"),
    [(300_000, None), (300_999, None), (301_000, "stale"), (-300_000, None), (-300_001, "future")],
)
def test_the_time_is_taken_in_whole_seconds_as_the_sender_does(
    off_ms: int, expected: str | None
) -> None:
    assert reason([(NAME, signed(BODY))], now_ms=NOW_MS + off_ms) == expected


@pytest.mark.parametrize("name", [b"authorization", b"cookie", b"proxy-authorization"])
def test_credentials_are_not_kept(name: bytes) -> None:
    assert b"sec.ret" not in readable(BODY, (name, b"sec.ret"), (b"x", b"y")).headers
    unread = content(b"[]", (name, b"sec.ret"))
    assert b"sec.ret" not in unread.headers


def test_kept_headers_are_bounded() -> None:
    many = [(b"x-%d" % number, b"v" * 70_000) for number in range(200)]
    assert len(readable(BODY, *many).headers) < 64 * 1100


@pytest.mark.parametrize("value", [b'"2026"', b"null", b"7", b"{}", b'"' + b"9" * 5000 + b'"'])
def test_created_at_may_be_anything_and_is_kept_if_it_is_text(value: bytes) -> None:
    event = readable(b'{"id":"a","event":"b","createdAt":%b}' % value)
    expected = event.document()["createdAt"]
    assert event.created_at == (expected if isinstance(expected, str) else None)


def test_nothing_is_parsed_before_the_signature_is_verified(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parsed: list[bytes] = []
    monkeypatch.setattr(authentication, "_parse", parsed.append)
    assert reason([(NAME, b"t=%d,v1=%b" % (NOW_MS // 1000, b"0" * 64))]) == "mismatch"
    assert reason([(NAME, signed(BODY))], now_ms=NOW_MS + 400_000) == "stale"
    assert parsed == []


@given(body=st.binary(max_size=300))
def test_a_signed_body_of_any_bytes_is_an_event_or_unreadable(body: bytes) -> None:
    assert content(body).body == body


@given(
    text=st.recursive(
        st.sampled_from(["null", "1", '"a"', "[]", '"video.ready"', "1e999", '"\\u0000"', "NaN"]),
        lambda inner: (
            st.lists(inner, max_size=4).map(lambda items: f"[{','.join(items)}]")
            | st.lists(
                st.tuples(st.sampled_from(["id", "event", "data", "createdAt"]), inner), max_size=5
            ).map(lambda pairs: "{" + ",".join(f'"{key}":{value}' for key, value in pairs) + "}")
        ),
    )
)
def test_signed_json_of_any_form_is_an_event_or_unreadable(text: str) -> None:
    result = content(text.encode())
    if isinstance(result, Event):
        assert (result.document()["id"], result.document()["event"]) == (result.id, result.kind)


@given(headers=st.lists(st.tuples(st.just(NAME) | st.binary(), st.binary())), body=st.binary())
def test_no_request_of_any_bytes_verifies_or_raises_another_error(
    headers: list[tuple[bytes, bytes]], body: bytes
) -> None:
    assert reason(headers, body) is not None


def key(secret: bytes, **more: Any) -> SigningSecret:
    return SigningSecret(secret=Secret(secret.decode()), **more)


def test_the_label_of_the_matching_secret_is_returned() -> None:
    other = key(b"the-secret-before-that", label="2025")
    for secrets, label in (
        ((key(SECRET), other), "1"),
        ((other, key(SECRET)), "2"),
        ((other, key(SECRET, label="new")), "new"),
    ):
        source = SourceSettings(name="main", path="/webhooks", secrets=secrets)
        assert authenticate(source, HEADERS, BODY, now_ms=NOW_MS).secret == label


def test_a_secret_verifies_until_its_end_exclusively() -> None:
    other, ends = key(b"the-secret-before-that"), key(SECRET, until=Moment(NOW_MS))
    source = SourceSettings(name="main", path="/webhooks", secrets=(ends, other))
    assert authenticate(source, HEADERS, BODY, now_ms=NOW_MS - 1).secret == "1"
    assert source.expired(NOW_MS - 1) == ()
    with pytest.raises(Rejected, match="mismatch"):
        authenticate(source, HEADERS, BODY, now_ms=NOW_MS)
    assert [each.label for each in source.expired(NOW_MS)] == ["1"]


def test_a_source_shows_no_secret_after_it_was_used() -> None:
    source = SourceSettings(name="main", path="/webhooks", secrets=(key(SECRET, label="new"),))
    authenticate(source, HEADERS, BODY, now_ms=NOW_MS)
    assert SECRET.decode() not in repr(source)


def test_a_mismatch_can_be_verified_later_with_other_secrets_as_of_its_receipt() -> None:
    body = BODY
    header = signature.header(b"the-secret-that-comes", now_s=NOW_MS // 1000, body=body).encode()
    headers = [(NAME, header), (b"cookie", b"session"), (b"host", b"relay")]
    assert reason(headers) == "mismatch"
    request = authentication.unverified(SOURCE, headers, body, now_ms=NOW_MS)
    assert request is not None
    assert request.size == len(header) + len(request.headers) + len(body)
    assert b"cookie" not in request.headers
    with pytest.raises(Rejected):
        authentication.reverify(SOURCE, request)
    secret = SigningSecret(secret=Secret("the-secret-that-comes"))
    later = SourceSettings(name="main", path="/webhooks", secrets=(secret,))
    authenticated = authentication.reverify(later, request)
    assert isinstance(authenticated.content, Event)
    assert (authenticated.content.received_ms, authenticated.skew_s) == (NOW_MS, 0)


def test_a_mismatch_outside_the_tolerance_is_not_kept() -> None:
    header = signature.header(b"another-secret-of-ours", now_s=NOW_MS // 1000, body=BODY).encode()
    an_hour = 3_600_000
    assert (
        authentication.unverified(SOURCE, [(NAME, header)], BODY, now_ms=NOW_MS + an_hour) is None
    )


def test_an_envelope_can_be_read_without_a_signature() -> None:
    event = authentication.read("main", b"", BODY, now_ms=NOW_MS)
    assert isinstance(event, Event)
    assert event.id == "evt_1"
