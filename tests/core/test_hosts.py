"""Host headers: what a browser may write, and what a rebound name or an attacker does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.core.hosts import HostHeader, Scheme, host_name, is_allowed, parse_host

DEFAULT = ("localhost", "127.0.0.1", "::1")


def parsed(text: str) -> HostHeader:
    host = parse_host(text)
    assert host is not None
    return host


@pytest.mark.parametrize(
    ("text", "name", "port"),
    [
        ("localhost", "localhost", None),
        ("localhost:9464", "localhost", 9464),
        ("LocalHost.:9464", "localhost", 9464),
        ("localhost:", "localhost", None),
        ("localhost:0", "localhost", None),
        ("127.0.0.1:9464", "127.0.0.1", 9464),
        ("[::1]:9464", "::1", 9464),
        ("[0:0:0:0:0:0:0:1]", "::1", None),
        ("[2001:DB8:0:0::1]", "2001:db8::1", None),
        ("relay_1.example:65535", "relay_1.example", 65535),
        ("xn--bcher-kva.example", "xn--bcher-kva.example", None),
    ],
)
def test_a_host_is_read_in_its_normal_form(text: str, name: str, port: int | None) -> None:
    host = parsed(text)
    assert (host.name, host.port) == (name, port)


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        ":9464",
        "localhost:65536",
        "localhost:99999999999",
        "localhost:-1",
        "localhost:9464:9464",
        "localhost:\u0669",
        "localhost, evil.test",
        "localhost evil.test",
        "localhost..",
        "..",
        "localhost\t",
        " localhost",
        "localhost/evil",
        "localhost@evil.test",
        "localhost#",
        "local%68ost",
        "\uff4cocalhost",
        "bücher.example",
        "::1",
        "[::1",
        "[]",
        "[::1]9464",
        "[::1%lo]",
        "localhost\x00",
        "localhost\n",
        "a" * 255,
        "a" * 100_000,
    ],
)
def test_a_malformed_host_is_not_parsed(text: str) -> None:
    assert parse_host(text) is None


@pytest.mark.servers
@given(st.text(max_size=40) | st.from_regex(r"[\[\]a-z0-9.:]{0,30}", fullmatch=True))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    host = parse_host(text)
    assert host is None or (host.name == host_name(host.name) and 0 < host.port_of("http") < 65536)


@pytest.mark.parametrize(
    ("text", "allowed", "is_ours"),
    [
        ("localhost:1", DEFAULT, True),
        ("LOCALHOST.", DEFAULT, True),
        ("127.0.0.1", DEFAULT, True),
        ("[::1]:9464", DEFAULT, True),
        ("[0::1]", DEFAULT, True),
        ("evil.test", DEFAULT, False),
        ("localhost.evil.test", DEFAULT, False),
        ("evil-localhost", DEFAULT, False),
        ("127.0.0.1.nip.io", DEFAULT, False),
        ("127.0.0.2", DEFAULT, False),
        ("127.1", DEFAULT, False),
        ("2130706433", DEFAULT, False),
        ("0.0.0.0", DEFAULT, False),
        ("[::]", DEFAULT, False),
        ("[::ffff:127.0.0.1]", DEFAULT, False),
        ("relay.example:8443", ("Relay.Example.",), True),
        ("sub.relay.example", ("relay.example",), False),
        ("localhost", ("relay.example",), False),
        ("[2001:db8::1]", ("[2001:DB8:0::1]",), True),
    ],
)
def test_only_allowed_hosts_are_ours(text: str, allowed: tuple[str, ...], is_ours: bool) -> None:
    assert is_allowed(parsed(text), allowed) is is_ours


@pytest.mark.parametrize(
    ("text", "is_loopback"),
    [
        ("localhost", True),
        ("localhost.", True),
        ("127.0.0.1", True),
        ("127.8.9.10", True),
        ("[::1]", True),
        ("relay.example", False),
        ("localhost.example", False),
        ("10.0.0.1", False),
        ("0.0.0.0", False),
    ],
)
def test_a_loopback_host_is_recognised(text: str, is_loopback: bool) -> None:
    assert parsed(text).is_loopback is is_loopback


@pytest.mark.parametrize(
    ("text", "scheme", "origin"),
    [
        ("localhost:9464", "http", "http://localhost:9464"),
        ("LOCALHOST:80", "http", "http://localhost"),
        ("localhost:443", "http", "http://localhost:443"),
        ("relay.example", "https", "https://relay.example"),
        ("relay.example:443", "https", "https://relay.example"),
        ("relay.example:80", "https", "https://relay.example:80"),
        ("relay.example.:8443", "https", "https://relay.example.:8443"),
        ("[::1]:9464", "http", "http://[::1]:9464"),
    ],
)
def test_an_origin_is_written_as_by_a_browser(text: str, scheme: Scheme, origin: str) -> None:
    assert parsed(text).origin(scheme) == origin
