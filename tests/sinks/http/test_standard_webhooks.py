"""Our signatures against those of the official library."""

import base64
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook

from relay.outbound.cloudevents import header_value
from relay.sinks.http import standard_webhooks

SECRET = "whsec_" + base64.b64encode(b"k" * 32).decode()
NOW_S = 1_772_443_800


@given(
    key=st.binary(min_size=24, max_size=64),
    id_=st.text(min_size=1).map(header_value),
    body=st.text(),
)
def test_a_signature_equals_the_official_library_s(key: bytes, id_: str, body: str) -> None:
    secret = "whsec_" + base64.b64encode(key).decode()
    expected = Webhook(secret).sign(id_, datetime.fromtimestamp(NOW_S, UTC), body)
    ours = standard_webhooks.sign(
        standard_webhooks.key(secret), id_=id_, now_s=NOW_S, body=body.encode()
    )
    assert ours == expected


@pytest.mark.parametrize(
    "secret",
    [
        SECRET,
        SECRET.rstrip("="),
        SECRET.removeprefix("whsec_"),
        "plain-secret-of-an-operator!",
        "correct horse battery",
    ],
)
def test_a_secret_gives_the_official_library_s_key(secret: str) -> None:
    key = standard_webhooks.key(secret)
    expected = Webhook(secret).sign("evt_1", datetime.fromtimestamp(NOW_S, UTC), "{}")
    assert standard_webhooks.sign(key, id_="evt_1", now_s=NOW_S, body=b"{}") == expected


@pytest.mark.parametrize(
    ("secret", "expected"),
    [
        ("whsec_", "24 to 64 bytes"),
        ("whsec_" + base64.b64encode(b"k" * 23).decode(), "got 23"),
        ("whsec_" + base64.b64encode(b"k" * 65).decode(), "got 65"),
        ("whsec_not*base64*at*all*whatever*marked", "is not base64"),
        ("whsec_aaaaa", "is not base64"),
        ("!!!", "expected whsec_"),
        ("abcde", "expected whsec_"),
        ("geheimwört", "expected whsec_"),
    ],
)
def test_a_bad_secret_is_refused_and_not_repeated(secret: str, expected: str) -> None:
    with pytest.raises(ValueError, match=expected) as caught:
        standard_webhooks.key(secret)
    assert secret == "whsec_" or secret not in str(caught.value)


def test_all_keys_sign_in_order() -> None:
    keys = [standard_webhooks.key(SECRET), b"other" * 6]
    headers = dict(standard_webhooks.headers(keys, id_="evt_1", now_s=NOW_S, body=b"{}"))
    each = [standard_webhooks.sign(k, id_="evt_1", now_s=NOW_S, body=b"{}") for k in keys]
    assert headers["webhook-signature"] == " ".join(each)


def test_without_keys_there_is_an_id_and_a_time_but_no_signature() -> None:
    headers = standard_webhooks.headers([], id_="evt_1", now_s=NOW_S, body=b"{}")
    assert headers == [("webhook-id", "evt_1"), ("webhook-timestamp", "1772443800")]
