"""Addresses of a request: forwarding headers are believed from trusted proxies alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.admin.clients import HOPS_MAX
from relay.admin.page.access.address import BrowserAddress, EarlyRefusal, place_of
from relay.core.config_values import Network
from tests.admin.page.access.requests import request

PROXIES = [Network("10.0.0.0/8"), Network("2001:db8:1::/48")]
STRANGER = "203.0.113.9"
Header = tuple[str, str]


def forwarded(value: str) -> Header:
    return ("x-forwarded-for", value)


def place(*headers: Header, peer: str | None = "10.0.0.1", target: str = "/") -> BrowserAddress:
    return place_of(request(*headers, peer=peer, target=target), trusted_proxies=PROXIES)


@pytest.mark.parametrize(
    ("peer", "headers", "client"),
    [
        (STRANGER, [], STRANGER),
        (STRANGER, [forwarded("127.0.0.1")], STRANGER),
        ("127.0.0.1", [forwarded(STRANGER)], "127.0.0.1"),
        ("::ffff:127.0.0.1", [], "127.0.0.1"),
        ("fe80::1%eth0", [], "fe80::1"),
        (None, [forwarded(STRANGER)], None),
        ("not-an-address", [forwarded(STRANGER)], None),
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", [forwarded(STRANGER)], STRANGER),
        ("::ffff:10.0.0.1", [forwarded(STRANGER)], STRANGER),
        ("2001:db8:1::2", [forwarded("2001:db8:2::3")], "2001:db8:2::3"),
        ("10.0.0.1", [forwarded(f"127.0.0.1, {STRANGER}")], STRANGER),
        ("10.0.0.1", [forwarded(f"{STRANGER}, 10.0.0.7,10.0.0.8")], STRANGER),
        ("10.0.0.1", [forwarded("127.0.0.1"), forwarded(STRANGER)], STRANGER),
        ("10.0.0.1", [forwarded("10.0.0.3, 10.0.0.2")], "10.0.0.3"),
        ("10.0.0.1", [forwarded(f"{STRANGER}:4711")], STRANGER),
        ("10.0.0.1", [forwarded("[2001:db8:2::3]:4711")], "2001:db8:2::3"),
        ("10.0.0.1", [forwarded("[2001:db8:2::3]")], "2001:db8:2::3"),
        ("10.0.0.1", [forwarded(f"::ffff:{STRANGER}")], STRANGER),
        ("10.0.0.1", [forwarded("")], "10.0.0.1"),
        ("10.0.0.1", [forwarded("unknown")], "10.0.0.1"),
        ("10.0.0.1", [forwarded(f"{STRANGER}, unknown")], "10.0.0.1"),
        ("10.0.0.1", [forwarded(f"{STRANGER}, _hidden, 10.0.0.2")], "10.0.0.2"),
        ("10.0.0.1", [forwarded("<script>, 127.0.0.1\x00")], "10.0.0.1"),
    ],
)
def test_the_client_is_the_last_address_before_the_trusted_proxies(
    peer: str | None, headers: list[Header], client: str | None
) -> None:
    assert place(*headers, peer=peer).client == client


def test_only_the_last_forwarded_addresses_are_read() -> None:
    assert place(forwarded(f"{STRANGER}{',10.0.0.2' * (HOPS_MAX - 1)}")).client == STRANGER
    assert place(forwarded(f"{STRANGER}{',10.0.0.2' * 9000}")).client == "10.0.0.2"


@given(st.text(st.characters(max_codepoint=255), max_size=60))
def test_no_forwarded_text_makes_a_stranger_local(text: str) -> None:
    got = place(forwarded(f"{text},{STRANGER}"))
    assert got.client == STRANGER


@pytest.mark.parametrize(
    ("peer", "values", "scheme"),
    [
        ("10.0.0.1", [], "http"),
        ("10.0.0.1", ["https"], "https"),
        ("10.0.0.1", ["HTTPS"], "https"),
        ("10.0.0.1", ["http"], "http"),
        (STRANGER, ["https"], "http"),
        (STRANGER, ["javascript", "https"], "http"),
        (None, ["https"], "http"),
    ],
)
def test_the_scheme_comes_from_a_trusted_proxy(
    peer: str | None, values: list[str], scheme: str
) -> None:
    headers = [("x-forwarded-proto", value) for value in values]
    assert place(*headers, peer=peer).scheme == scheme


@pytest.mark.parametrize(
    "values", [["https", "http"], ["https", "https"], ["https, http"], ["wss"], [""], ["https\x00"]]
)
def test_an_ambiguous_scheme_is_refused(values: list[str]) -> None:
    with pytest.raises(EarlyRefusal) as refused:
        place(*[("x-forwarded-proto", value) for value in values])
    assert (refused.value.status, refused.value.reason) == (400, "forwarded_proto")


@pytest.mark.parametrize(
    ("peer", "value", "target", "prefix", "path"),
    [
        ("10.0.0.1", "/relay", "/relay/events", "/relay", "/events"),
        ("10.0.0.1", "/relay", "/events", "/relay", "/events"),
        ("10.0.0.1", "/relay/", "/relay", "/relay", "/"),
        ("10.0.0.1", "/relay", "/relay/", "/relay", "/"),
        ("10.0.0.1", "/relay", "/relays", "/relay", "/relays"),
        ("10.0.0.1", "/tools/relay-1.x_~", "/", "/tools/relay-1.x_~", "/"),
        ("10.0.0.1", "/", "/events", "", "/events"),
        ("10.0.0.1", "", "/events", "", "/events"),
        (STRANGER, "/relay", "/relay/events", "", "/relay/events"),
        (STRANGER, "//evil.test", "/", "", "/"),
    ],
)
def test_the_prefix_comes_from_a_trusted_proxy(
    peer: str, value: str, target: str, prefix: str, path: str
) -> None:
    got = place(("x-forwarded-prefix", value), peer=peer, target=target)
    assert (got.prefix, got.path) == (prefix, path)
    assert got.to("/events") == f"{prefix}/events"


@pytest.mark.parametrize(
    "values",
    [
        ["//evil.test"],
        ["/\\evil.test"],
        ["relay"],
        ["https://evil.test/relay"],
        ["/relay; Domain=evil.test"],
        ["/relay\r\nSet-Cookie: x=y"],
        ["/relay\n"],
        ["/re lay"],
        ["/re%2flay"],
        ["/.."],
        ["/relay/../admin"],
        ["/./relay"],
        ["/relay//x"],
        ["/relay//"],
        ["/r\xe9lay"],
        ["/<script>"],
        ["/relay,/relay"],
        ["/relay", "/relay"],
        ["", "/relay"],
    ],
)
def test_a_prefix_that_is_not_a_plain_path_is_refused(values: list[str]) -> None:
    with pytest.raises(EarlyRefusal) as refused:
        place(*[("x-forwarded-prefix", value) for value in values])
    assert (refused.value.status, refused.value.reason) == (400, "forwarded_prefix")


@pytest.mark.parametrize("headers", [[], ["localhost", "localhost"], ["localhost", "evil.test"]])
def test_a_request_needs_exactly_one_host(headers: list[str]) -> None:
    made = request(("host", "x"))
    made.scope["headers"] = [(b"host", host.encode()) for host in headers]
    with pytest.raises(EarlyRefusal) as refused:
        place_of(made, trusted_proxies=[])
    assert (refused.value.status, refused.value.reason) == (400, "host_header")


def test_a_refusal_repeats_nothing_of_the_request() -> None:
    for header in ("host", "x-forwarded-proto", "x-forwarded-prefix"):
        with pytest.raises(EarlyRefusal) as refused:
            place((header, "<script>"))
        assert "script" not in refused.value.text


def direct(*headers: Header, peer: str | None = "127.0.0.1", version: str = "1.1") -> bool:
    made = request(*headers, peer=peer, version=version)
    return place_of(made, trusted_proxies=[Network("127.0.0.1")]).is_direct_from_loopback


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.0.0.9", "::1", "::ffff:127.0.0.1"])
@pytest.mark.parametrize("host", ["localhost", "localhost.:9464", "127.0.0.1:9464", "[::1]"])
def test_a_request_from_this_machine_is_direct(peer: str, host: str) -> None:
    assert direct(("host", host), peer=peer)


@pytest.mark.parametrize("peer", [None, "10.0.0.1", STRANGER, "::", "172.17.0.1", "fe80::1"])
def test_a_request_from_another_machine_is_not(peer: str | None) -> None:
    assert not direct(peer=peer)


@pytest.mark.parametrize("host", ["relay.example", "localhost.evil.test", "10.0.0.1", "0.0.0.0"])
def test_a_request_to_another_name_is_not(host: str) -> None:
    assert not direct(("host", host))


@pytest.mark.parametrize(
    "name",
    [
        "forwarded",
        "via",
        "x-real-ip",
        "x-forwarded-for",
        "x-forwarded-proto",
        "x-forwarded-prefix",
        "x-forwarded-host",
        "x-forwarded-anything",
        "X-Forwarded-Server",
    ],
)
def test_a_request_through_a_proxy_is_not(name: str) -> None:
    value = "http" if name == "x-forwarded-proto" else ""
    assert not direct((name, value))


def test_a_request_through_a_proxy_that_adds_no_header_is_not() -> None:
    assert not direct(version="1.0")
