"""Targets of redirects: paths of the page and nothing else."""

from urllib.parse import urljoin, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.admin.page.access.address import (
    TARGET_MAX,
    own_path,
    own_target,
    place_of,
    refresh_target,
)
from relay.core.config_values import Network
from tests.admin.page.access.requests import request


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("/", "/"),
        ("/events", "/events"),
        ("/events?kind=lead.captured&after=12", "/events?kind=lead.captured&after=12"),
        ("/events/main/a%2Fb", "/events/main/a%2Fb"),
        ("/events?q=http://evil.test", "/events?q=http://evil.test"),
        ("/events?again=1", "/events"),
        ("/events?a=b&again=1&c=d", "/events?a=b&c=d"),
        ("/events?against=1", "/events?against=1"),
        ("/events#top", "/events"),
        ("/events?#top", "/events"),
    ],
)
def test_a_path_of_the_page_is_kept(text: str, path: str) -> None:
    assert own_path(text) == path


@pytest.mark.parametrize(
    "text",
    [
        "",
        "events",
        "//evil.test",
        "///evil.test",
        "/\\evil.test",
        "\\\\evil.test",
        "/events\\..",
        "http://evil.test/",
        "http:evil.test",
        "javascript:alert(1)",
        "data:text/html,x",
        "/\t/evil.test",
        "/\n/evil.test",
        "/\r\nSet-Cookie: a=b",
        "\t//evil.test",
        " /events",
        "/events ",
        "/\x00",
        "/\x7f",
        "/é",
        "/\u202e",
        "/../other",
        "/..",
        "/events/../../other",
        "/.//evil.test",
        "/%2e%2e/other",
        "/.%2E/other",
        "/" + "a" * TARGET_MAX,
    ],
)
def test_anything_else_becomes_the_first_page(text: str) -> None:
    assert own_path(text) == "/"


@given(st.text(max_size=30) | st.from_regex(r"[/\\.:@a?#%2e\t]{1,20}", fullmatch=True))
def test_no_target_leaves_the_site_or_the_prefix(text: str) -> None:
    for prefix in ("", "/relay"):
        url = urlsplit(urljoin("https://relay.example/relay/login", prefix + own_path(text)))
        assert url.netloc == "relay.example"
        assert url.path.startswith(prefix)


def again(*headers: tuple[str, str], target: str = "/events", method: str = "GET") -> str | None:
    made = request(*headers, target=target, method=method)
    return refresh_target(made, place_of(made, trusted_proxies=[Network("127.0.0.1")]))


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("/", "/?again=1"),
        ("/events", "/events?again=1"),
        ("/events?kind=lead.captured", "/events?kind=lead.captured&again=1"),
        ("//evil.test", "/?again=1"),
        ("//evil.test/events", "/?again=1"),
        ("/\\evil.test", "/?again=1"),
        ("/events?again=1", None),
        ("/events?a=b&again=1", None),
        ("/events?again=0", None),
    ],
)
def test_a_request_without_a_cookie_asks_again_once(target: str, expected: str | None) -> None:
    assert again(target=target) == expected


@pytest.mark.parametrize(
    ("site", "asks_again"),
    [("cross-site", True), ("same-site", True), ("same-origin", False), ("none", False)],
)
def test_a_browser_that_would_have_sent_the_cookie_does_not_ask_again(
    site: str, asks_again: bool
) -> None:
    assert (again(("sec-fetch-site", site)) is not None) is asks_again


def test_a_post_does_not_ask_again() -> None:
    assert again(method="POST") is None


def test_asking_again_keeps_the_prefix() -> None:
    prefix = ("x-forwarded-prefix", "/relay")
    assert again(prefix, target="/relay/events?a=b") == "/relay/events?a=b&again=1"
    assert again(prefix, target="/events") == "/relay/events?again=1"


def test_the_path_of_a_request_is_below_the_prefix() -> None:
    made = request(("x-forwarded-prefix", "/relay"), target="/relay/events?a=b&again=1")
    place = place_of(made, trusted_proxies=[Network("127.0.0.1")])
    assert own_target(made, place) == "/events?a=b"
