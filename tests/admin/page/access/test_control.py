"""Who may see the page, and who may change anything, with sessions in a real store."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from starlette.requests import Request

from relay.admin import auth
from relay.admin.auth import GuessLimits, KnownClients
from relay.admin.page.access.control import AccessControl, LoggedIn, LoginRefused
from relay.admin.page.access.visitor import AdminTokens, Visitor
from relay.core.config_values import Network, Secret
from relay.core.errors import StoreFull
from relay.store.sessions import LoginSession, Role
from tests.admin.page.access.requests import ORIGIN, request
from tests.conftest import ManualClock
from tests.store.places import opened

ADMIN = "the-admin-token-é-\U0001f511"
VIEWER = "the-viewer-token"
TOKENS = AdminTokens(admin=Secret(ADMIN), viewer=Secret(VIEWER))
HOUR_MS = 3_600_000
TLS = (("host", "relay.example"), ("x-forwarded-proto", "https"))
TLS_ORIGIN = ("origin", "https://relay.example")


class Unwritable:
    """Sessions of a store with a full disk."""

    def __init__(self, sessions: Any) -> None:
        self._sessions = sessions

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sessions, name)

    async def seen(self, identifier: bytes, *, now_ms: int) -> None:
        raise StoreFull(0)

    async def close(self, identifier: bytes) -> None:
        raise StoreFull(0)


@dataclass
class Page:
    """A access, and a browser that keeps the cookie."""

    sessions: Any
    limits: GuessLimits
    clock: ManualClock
    tokens: AdminTokens = TOKENS
    allowed_hosts: tuple[str, ...] = ("localhost", "127.0.0.1", "relay.example")
    access: AccessControl = field(init=False)

    def __post_init__(self) -> None:
        self.access = self.restarted()

    def restarted(self) -> AccessControl:
        return AccessControl(
            sessions=self.sessions,
            limits=self.limits,
            clock=self.clock,
            tokens=lambda: self.tokens,
            allowed_hosts=lambda: self.allowed_hosts,
            trusted_proxies=lambda: [Network("127.0.0.1"), Network("10.0.0.1")],
        )

    async def log_in(self, token: str, *headers: tuple[str, str], **made: Any) -> str:
        """Log in; return the cookie."""
        result = await self.access.log_in(post(ORIGIN, *headers, **made), token)
        assert isinstance(result, LoggedIn)
        return result.set_cookies[0].partition(";")[0]

    async def refused(self, token: str, *headers: tuple[str, str], **made: Any) -> tuple[str, int]:
        """Fail to log in; return the reason and the wait."""
        result = await self.access.log_in(post(*(headers or (ORIGIN,)), **made), token)
        assert isinstance(result, LoginRefused)
        return result.reason, result.wait_s

    async def visitor(self, cookie: str, *, active: bool = True) -> Visitor | None:
        return await self.access.visitor(request(("cookie", cookie)), active=active)

    async def known(self, token: str) -> Visitor:
        visitor = await self.visitor(await self.log_in(token))
        assert visitor is not None
        return visitor


@pytest.fixture
async def page(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Page]:
    async with opened(tmp_path / "relay.db", clock) as store:
        limits = GuessLimits(clock, KnownClients(store.sessions, clock))
        yield Page(store.sessions, limits, clock)


def post(*headers: tuple[str, str], **made: Any) -> Request:
    return request(*headers, method="POST", **made)


@pytest.mark.parametrize(("token", "role"), [(ADMIN, "admin"), (VIEWER, "viewer")])
async def test_each_token_opens_the_page_with_its_role(
    page: Page, token: str, role: Role, lines: list[Any]
) -> None:
    visitor = await page.known(token)
    assert (visitor.role, visitor.address) == (role, "127.0.0.1")
    assert not visitor.is_local_without_token
    (line,) = lines
    assert (line["event"], line["actor"], line["client"]) == ("login.done", role, "127.0.0.1")


@pytest.mark.parametrize(
    "token",
    [
        "",
        " ",
        ADMIN[:-1],
        ADMIN + "x",
        ADMIN.upper(),
        ADMIN + "\x00",
        VIEWER + " ",
        ADMIN + VIEWER,
        "é",
        "\ud800",
        "\x00",
        "x" * 1_000_000,
    ],
)
async def test_any_other_token_is_wrong_and_nothing_says_why(
    page: Page, token: str, lines: list[Any]
) -> None:
    assert await page.refused(token) == ("wrong", 0)
    (line,) = lines
    assert (line["event"], line["reason"]) == ("login.refused", "wrong")
    assert set(line) == {"event", "reason", "client", "log_level"}


@pytest.mark.parametrize(
    "tokens", [AdminTokens(), AdminTokens(admin=Secret("")), AdminTokens(viewer=Secret(VIEWER))]
)
async def test_a_token_that_is_not_set_opens_nothing(page: Page, tokens: AdminTokens) -> None:
    page.tokens = tokens
    for token in ("", ADMIN, "None", "***"):
        assert (await page.refused(token))[0] == "wrong"


async def test_both_tokens_are_always_compared(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def compare(first: bytes, second: bytes) -> bool:
        compared.append((len(first), len(second)))
        return first == second

    monkeypatch.setattr("relay.admin.page.access.visitor.hmac.compare_digest", compare)
    for tokens in (TOKENS, AdminTokens(admin=Secret(ADMIN)), AdminTokens()):
        for token in (ADMIN, VIEWER, "x"):
            compared.clear()
            tokens.role_of(token)
            assert compared == [(32, 32), (32, 32)]


async def test_no_text_of_the_objects_shows_a_secret(page: Page) -> None:
    result = await page.access.log_in(post(ORIGIN), ADMIN)
    assert isinstance(result, LoggedIn)
    cookie = result.set_cookies[0].partition(";")[0]
    visitor = await page.visitor(cookie)
    text = repr([result, visitor, TOKENS])
    assert cookie.partition("=")[2] not in text
    assert "token-" not in text


async def test_each_login_has_a_new_identifier_and_ends_the_old_session(page: Page) -> None:
    first = await page.log_in(VIEWER)
    second = await page.log_in(ADMIN, ("cookie", first))
    assert second != first
    assert await page.visitor(first) is None
    assert await page.visitor(second) is not None


async def test_an_identifier_that_the_client_chose_becomes_no_session(page: Page) -> None:
    chosen = f"relay-9464={bytes(32).hex()}"
    assert await page.log_in(ADMIN, ("cookie", chosen)) != chosen
    assert await page.visitor(chosen) is None


async def test_two_browsers_have_a_session_each(page: Page) -> None:
    first, second = await page.log_in(ADMIN), await page.log_in(ADMIN)
    assert await page.visitor(first) is not None
    assert await page.visitor(second) is not None


async def test_a_session_outlives_a_restart(page: Page) -> None:
    cookie = await page.log_in(ADMIN)
    page.access = page.restarted()
    assert await page.visitor(cookie) is not None


async def test_a_changed_token_ends_its_sessions_only(page: Page) -> None:
    admin, viewer = await page.log_in(ADMIN), await page.log_in(VIEWER)
    page.tokens = replace(TOKENS, admin=Secret("another-admin-token"))
    assert await page.visitor(admin) is None
    assert await page.visitor(viewer) is not None
    page.tokens = AdminTokens(admin=page.tokens.admin)
    assert await page.visitor(viewer) is None


async def test_a_token_that_changes_its_role_ends_its_sessions(page: Page) -> None:
    admin, viewer = await page.log_in(ADMIN), await page.log_in(VIEWER)
    page.tokens = AdminTokens(admin=Secret(VIEWER), viewer=Secret(ADMIN))
    assert await page.visitor(admin) is None
    assert await page.visitor(viewer) is None


async def test_without_tokens_no_session_is_an_admins(page: Page) -> None:
    cookie = await page.log_in(ADMIN)
    page.tokens = AdminTokens()
    visitor = await page.visitor(cookie)
    assert visitor is not None
    assert (visitor.role, visitor.identifier) == ("viewer", None)


async def test_activity_keeps_a_session_alive_and_polling_does_not(page: Page) -> None:
    active, polled = await page.log_in(ADMIN), await page.log_in(ADMIN)
    for _ in range(3):
        page.clock.ms += HOUR_MS - 1
        await page.visitor(active)
        await page.visitor(polled, active=False)
    assert await page.visitor(active) is not None
    assert await page.visitor(polled) is None


async def test_a_session_ends_however_much_it_is_used(page: Page) -> None:
    cookie = await page.log_in(ADMIN)
    for _ in range(12):
        page.clock.ms += HOUR_MS - 1
        assert await page.visitor(cookie) is not None
    page.clock.ms += HOUR_MS
    assert await page.visitor(cookie) is None


async def test_a_clock_set_far_back_ends_sessions(page: Page) -> None:
    cookie = await page.log_in(ADMIN)
    page.clock.ms -= 30_000
    assert await page.visitor(cookie) is not None
    page.clock.ms -= HOUR_MS
    assert await page.visitor(cookie) is None


async def test_a_full_disk_leaves_the_page_readable(page: Page) -> None:
    cookie = await page.log_in(ADMIN)
    page.clock.ms += HOUR_MS
    page.sessions = Unwritable(page.sessions)
    page.access = page.restarted()
    assert await page.visitor(cookie) is not None
    assert await page.log_in(ADMIN, ("cookie", cookie))


async def test_a_logout_ends_the_session(page: Page, lines: list[Any]) -> None:
    cookie = await page.log_in(VIEWER)
    visitor = await page.visitor(cookie)
    assert visitor is not None
    removed = await page.access.log_out(post(("cookie", cookie)), visitor)
    assert removed == "relay-9464=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0"
    assert await page.visitor(cookie) is None
    assert [line["event"] for line in lines] == ["login.done", "logout.done"]


async def test_a_logout_that_fails_says_so(page: Page) -> None:
    visitor = await page.known(ADMIN)
    page.sessions = Unwritable(page.sessions)
    with pytest.raises(StoreFull):
        await page.restarted().log_out(post(), visitor)


@pytest.mark.parametrize(
    "cookie",
    ["", "relay-9464=", "relay-9464=x", f"relay-9464={bytes(32).hex()}", "relay-9464=" + "f" * 999],
)
async def test_a_strangers_cookie_is_not_a_session(page: Page, cookie: str) -> None:
    assert await page.visitor(cookie) is None


async def test_a_cookie_of_another_scheme_is_not_a_session(page: Page) -> None:
    value = (await page.log_in(ADMIN)).partition("=")[2]
    headers = [*TLS, ("cookie", f"relay-9464={value}; relay-80={value}")]
    assert await page.access.visitor(request(*headers), active=True) is None


async def test_a_proxy_with_tls_and_a_prefix_is_as_good(page: Page) -> None:
    headers = [*TLS, ("x-forwarded-prefix", "/relay"), ("x-forwarded-for", "203.0.113.9")]
    result = await page.access.log_in(post(*headers, TLS_ORIGIN, peer="10.0.0.1"), ADMIN)
    assert isinstance(result, LoggedIn)
    cookie, _, attributes = result.set_cookies[0].partition("; ")
    assert cookie.startswith("__Secure-relay=")
    assert attributes == "Path=/relay; HttpOnly; SameSite=Strict; Secure"
    made = request(*headers, ("cookie", cookie), peer="10.0.0.1")
    visitor = await page.access.visitor(made, active=True)
    assert visitor is not None
    assert visitor.address == "203.0.113.9"
    change = post(*headers, TLS_ORIGIN, peer="10.0.0.1")
    assert page.access.check_change(change, visitor, visitor.form_token()) is None


@pytest.mark.parametrize("peer", ["127.0.0.1", "172.17.0.1", "::1"])
async def test_plain_http_to_a_loopback_name_takes_a_login_from_any_peer(
    page: Page, peer: str
) -> None:
    assert await page.log_in(ADMIN, peer=peer)


async def test_plain_http_to_another_name_takes_no_login(page: Page) -> None:
    headers = [("host", "relay.example"), ("origin", "http://relay.example")]
    assert await page.refused(ADMIN, *headers) == ("plain_http", 0)
    assert await page.refused(ADMIN, *headers, peer="203.0.113.9") == ("plain_http", 0)


@pytest.mark.parametrize(
    "headers",
    [
        [("host", "relay.example")],
        [("x-forwarded-for", "203.0.113.9")],
        [("via", "1.1 proxy")],
        [("forwarded", "for=203.0.113.9")],
    ],
)
async def test_without_any_token_only_this_machine_sees_the_page(
    page: Page, headers: list[tuple[str, str]]
) -> None:
    page.tokens = AdminTokens()
    local = await page.access.visitor(request(), active=True)
    assert local == Visitor(role="viewer", identifier=None, address="127.0.0.1")
    assert local.is_local_without_token
    assert local.form_token() == ""
    assert await page.access.log_out(post(), local) is None
    assert await page.access.visitor(request(*headers), active=True) is None
    assert await page.access.visitor(request(peer="172.17.0.1"), active=True) is None


@pytest.mark.parametrize("tokens", [TOKENS, AdminTokens(viewer=Secret(VIEWER))])
async def test_with_a_token_this_machine_has_to_log_in_too(page: Page, tokens: AdminTokens) -> None:
    page.tokens = tokens
    assert await page.access.visitor(request(), active=True) is None


async def test_an_address_has_five_tries_and_then_the_right_token_waits_too(page: Page) -> None:
    for number in range(5):
        assert await page.refused(f"x{number}") == ("wrong", 0)
    assert await page.refused("x5") == ("too_many", 30)
    assert await page.refused(ADMIN) == ("too_many", 30)
    page.clock.ms += 30_000
    assert await page.log_in(ADMIN)


async def test_addresses_that_change_in_a_proxys_header_try_no_more_than_the_proxy_may(
    page: Page,
) -> None:
    reasons = [
        (await page.refused(f"x{n}", ORIGIN, ("x-forwarded-for", f"198.{n}.100.1")))[0]
        for n in range(200)
    ]
    assert reasons.count("wrong") == auth.PROXY.tries


async def test_an_operator_whose_address_a_stranger_names_is_not_locked_out(page: Page) -> None:
    operator = ("x-forwarded-for", "192.0.2.2")
    assert await page.log_in(ADMIN, operator)
    for number in range(2 * auth.ADDRESS.tries):
        assert await page.refused(f"x{number}", ORIGIN, operator) == ("wrong", 0)
    for number in range(400):
        address = ("x-forwarded-for", f"198.{number % 100}.51.{number // 100}")
        await page.refused(f"y{number}", ORIGIN, address)
    assert await page.log_in(ADMIN, operator)


async def test_a_known_browser_is_not_locked_out_by_what_names_its_address(page: Page) -> None:
    operator = ("x-forwarded-for", "192.0.2.2")
    result = await page.access.log_in(post(ORIGIN, operator), VIEWER)
    assert isinstance(result, LoggedIn)
    cookie = ("cookie", result.set_cookies[1].partition(";")[0])
    for number in range(2 * auth.KNOWN.tries):
        await page.refused(f"x{number}", ORIGIN, operator)
    assert (await page.refused(ADMIN, ORIGIN, operator))[0] == "too_many"
    again = await page.access.log_in(post(ORIGIN, operator, cookie), ADMIN)
    assert isinstance(again, LoggedIn)
    assert again.set_cookies[1] == result.set_cookies[1]


async def test_an_address_that_a_stranger_claims_does_not_count(page: Page) -> None:
    for n in range(5):
        claimed = ("x-forwarded-for", f"10.9.9.{n}")
        await page.refused(f"x{n}", ORIGIN, claimed, peer="172.17.0.1")
    assert (await page.refused("x5", peer="172.17.0.1"))[0] == "too_many"


async def test_the_viewers_token_frees_no_tries_for_the_admins(page: Page) -> None:
    assert await page.log_in(VIEWER)
    for number in range(auth.KNOWN.tries):
        assert await page.log_in(VIEWER)
        assert await page.refused(f"x{number}") == ("wrong", 0)
    assert (await page.refused("x"))[0] == "too_many"


@pytest.mark.parametrize(
    "origins",
    [
        [],
        ["null"],
        [""],
        ["http://evil.test"],
        ["https://localhost:9464"],
        ["http://localhost"],
        ["http://localhost:9465"],
        ["http://127.0.0.1:9464"],
        ["http://localhost:9464/"],
        ["http://localhost:9464.evil.test"],
        ["http://evil@localhost:9464"],
        ["http://localhost.:9464"],
        ["HTTP://LOCALHOST:9464"],
        ["http://localhost:9464 http://evil.test"],
        ["http://localhost:9464", "http://localhost:9464"],
        ["http://localhost:9464", "http://evil.test"],
        ["http://loc\xe4lhost:9464"],
        ["http://" + "a" * 60_000],
    ],
)
async def test_a_form_of_another_origin_is_refused(
    page: Page, origins: list[str], lines: list[Any]
) -> None:
    headers = [("origin", origin) for origin in origins]
    visitor = Visitor(role="admin", identifier=bytes(32), address=None)
    assert page.access.check_change(post(*headers), visitor, visitor.form_token()) == "origin"
    result = await page.access.log_in(post(*headers), ADMIN)
    assert result == LoginRefused(reason="sender")
    assert [(line["event"], line["reason"]) for line in lines] == [("form.refused", "origin")] * 2


@pytest.mark.parametrize(
    "sites", [["cross-site"], ["same-site"], ["none"], [""], ["same-origin", "x"]]
)
async def test_a_form_that_the_browser_calls_foreign_is_refused(
    page: Page, sites: list[str]
) -> None:
    headers = [ORIGIN, *(("sec-fetch-site", site) for site in sites)]
    visitor = Visitor(role="admin", identifier=bytes(32), address=None)
    assert page.access.check_change(post(*headers), visitor, visitor.form_token()) == "fetch_site"
    assert await page.refused(ADMIN, *headers) == ("sender", 0)


async def test_a_form_of_the_page_is_accepted(page: Page) -> None:
    visitor = await page.known(ADMIN)
    for headers in ([ORIGIN], [ORIGIN, ("sec-fetch-site", "same-origin")]):
        assert page.access.check_change(post(*headers), visitor, visitor.form_token()) is None


async def test_a_form_needs_the_token_of_its_own_session(page: Page, lines: list[Any]) -> None:
    visitor, other = await page.known(ADMIN), await page.known(ADMIN)
    assert visitor.form_token() != other.form_token()
    assert visitor.identifier is not None
    for token in (
        "",
        other.form_token(),
        visitor.form_token()[:-1],
        visitor.form_token().upper(),
        visitor.form_token() + "\x00",
        visitor.identifier.hex(),
        "é",
        "\ud800",
        "0" * 100_000,
    ):
        assert page.access.check_change(post(ORIGIN), visitor, token) == "form_token"
    assert {line["reason"] for line in lines if line["event"] == "form.refused"} == {"form_token"}


async def test_a_viewer_changes_nothing_but_may_log_out(page: Page) -> None:
    visitor = await page.known(VIEWER)
    assert page.access.check_change(post(ORIGIN), visitor, visitor.form_token()) == "role"
    assert page.access.check_form(post(ORIGIN), visitor, visitor.form_token()) is None


async def test_without_a_session_nothing_can_be_changed(page: Page) -> None:
    visitor = Visitor(role="viewer", identifier=None, address="127.0.0.1")
    assert page.access.check_form(post(ORIGIN), visitor, "") == "session"
    assert page.access.check_change(post(ORIGIN), visitor, "") == "session"


@pytest.mark.parametrize("host", ["evil.test", "localhost.evil.test:9464", "[::1]", "10.0.0.1"])
async def test_a_wrong_host_gets_nothing(page: Page, host: str, lines: list[Any]) -> None:
    cookie = await page.log_in(ADMIN)
    made = post(("host", host), ("origin", f"http://{host}"), ("cookie", cookie))
    refusal = page.access.refusal(made)
    assert refusal is not None
    assert (refusal.status, refusal.reason) == (421, "host")
    assert "admin.allowed_hosts" in refusal.text
    assert host not in refusal.text
    assert (lines[-1]["event"], lines[-1]["reason"]) == ("page.refused", "host")
    visitor = Visitor(role="admin", identifier=bytes(32), address=None)
    with pytest.raises(type(refusal)):
        await page.access.visitor(made, active=True)
    with pytest.raises(type(refusal)):
        await page.access.log_in(made, ADMIN)
    with pytest.raises(type(refusal)):
        page.access.check_change(made, visitor, visitor.form_token())


async def test_an_allowed_host_is_not_refused(page: Page) -> None:
    assert page.access.refusal(request()) is None
    assert page.access.refusal(request(("host", "RELAY.example.:8443"))) is None
    page.allowed_hosts = ("other.example",)
    assert page.access.refusal(request()) is not None


async def test_a_pasted_link_asks_again_before_the_login(page: Page) -> None:
    cookie = await page.log_in(ADMIN)
    assert page.access.refresh_target(request(target="/events?a=b")) == "/events?a=b&again=1"
    assert page.access.refresh_target(request(target="/events?a=b&again=1")) is None
    ended = request(("cookie", cookie), target="/events")
    assert page.access.refresh_target(ended) is None
    page.tokens = AdminTokens()
    assert page.access.refresh_target(request(target="/events")) is None


async def test_a_session_carries_the_address_of_its_login(page: Page) -> None:
    cookie = await page.log_in(ADMIN, ("x-forwarded-for", "203.0.113.9"))
    identifier = bytes.fromhex(cookie.partition("=")[2])
    prints = TOKENS.fingerprints(page.sessions.fingerprint).values()
    found = await page.sessions.find(identifier, fingerprints=prints, now_ms=page.clock.ms)
    assert found == LoginSession("admin", "203.0.113.9")


async def test_refusals_are_logged_ten_times_a_minute_at_most(page: Page, lines: list[Any]) -> None:
    for _ in range(100):
        page.access.refusal(request(("host", "evil.test")))
    assert len(lines) <= 10
