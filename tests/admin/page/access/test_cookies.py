"""The session's cookie, by how the page is reached."""

from http.cookies import SimpleCookie

import pytest

from relay.admin.clients import Client
from relay.admin.page.access.address import BrowserAddress
from relay.admin.page.access.visitor import Cookie, session_cookie
from relay.core.hosts import parse_host
from tests.admin.page.access.requests import request

IDENTIFIER = bytes(range(32))
COOKIE = Cookie("relay-9464", "/", is_secure=False)
VALUE = IDENTIFIER.hex()
OTHER = bytes(32).hex()


def reached(url: str) -> BrowserAddress:
    scheme, _, rest = url.partition("://")
    authority, slash, prefix = rest.partition("/")
    host = parse_host(authority)
    assert host is not None
    return BrowserAddress(
        scheme="https" if scheme == "https" else "http",
        host=host,
        prefix=slash + prefix,
        path="/",
        sender=Client(None),
        is_direct_from_loopback=False,
    )


@pytest.mark.parametrize(
    ("url", "header"),
    [
        (
            "https://relay.example",
            "__Host-relay=V; Path=/; HttpOnly; SameSite=Strict; Secure",
        ),
        (
            "https://localhost:8443",
            "__Host-relay=V; Path=/; HttpOnly; SameSite=Strict; Secure",
        ),
        (
            "https://tools.example/relay",
            "__Secure-relay=V; Path=/relay; HttpOnly; SameSite=Strict; Secure",
        ),
        ("http://localhost:9464", "relay-9464=V; Path=/; HttpOnly; SameSite=Strict"),
        ("http://127.0.0.1:19464", "relay-19464=V; Path=/; HttpOnly; SameSite=Strict"),
        ("http://[::1]", "relay-80=V; Path=/; HttpOnly; SameSite=Strict"),
        ("http://localhost/relay", "relay-80=V; Path=/relay; HttpOnly; SameSite=Strict"),
    ],
)
def test_a_cookie_is_as_safe_as_the_way_allows(url: str, header: str) -> None:
    cookie = session_cookie(reached(url))
    assert cookie is not None
    assert cookie.set(IDENTIFIER) == header.replace("V", VALUE, 1)
    assert cookie.delete() == header.replace("V", "", 1) + "; Max-Age=0"
    (morsel,) = SimpleCookie(cookie.set(IDENTIFIER)).values()
    assert (morsel.key, morsel.value) == (cookie.name, VALUE)


def test_the_cookie_of_a_known_browser_outlasts_its_session() -> None:
    cookie = session_cookie(reached("https://tools.example/relay"))
    assert cookie is not None
    header = "__Secure-relay-known=V; Path=/relay; HttpOnly; SameSite=Strict; Secure"
    expected = f"{header}; Max-Age={30 * 86_400}".replace("V", VALUE, 1)
    assert cookie.of_browser().set(IDENTIFIER) == expected


@pytest.mark.parametrize("url", ["http://relay.example", "http://10.0.0.1:9464", "http://a/relay"])
def test_plain_http_to_another_machine_has_no_cookie(url: str) -> None:
    assert session_cookie(reached(url)) is None


@pytest.mark.parametrize(
    ("headers", "identifier"),
    [
        ([f"relay-9464={VALUE}"], IDENTIFIER),
        ([f"a=b; relay-9464={VALUE}; c=d"], IDENTIFIER),
        ([f"a=b;relay-9464={VALUE}"], IDENTIFIER),
        (["a=b", f"relay-9464={VALUE}"], IDENTIFIER),
        ([f"relay-9464={VALUE}; relay-9464={VALUE}"], IDENTIFIER),
        ([f"relay-9464={VALUE}; relay-9464={OTHER}"], None),
        ([f"relay-9464={VALUE}", f"relay-9464={OTHER}"], None),
        ([f"relay-9464={VALUE}; relay-9464="], None),
        ([f"relay-9465={VALUE}"], None),
        ([f"RELAY-9464={VALUE}"], None),
        ([f'relay-9464="{VALUE}"'], None),
        ([f"relay-9464={VALUE.upper()}"], None),
        ([f"relay-9464={VALUE}0"], None),
        ([f"relay-9464={VALUE[1:]}"], None),
        ([f"relay-9464={VALUE[1:]}\xe9"], None),
        ([f"relay-9464={VALUE[1:]}\x00"], None),
        (["relay-9464=" + "0" * 60_000], None),
        (["relay-9464"], None),
        (["; ;=;=="], None),
        (["=" * 60_000], None),
        ([], None),
    ],
)
def test_the_only_cookie_of_the_name_is_read(headers: list[str], identifier: bytes | None) -> None:
    assert COOKIE.read(request(*[("cookie", header) for header in headers])) == identifier
