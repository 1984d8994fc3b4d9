"""Decides who may see the page and change anything; every request of the page passes here.

The log says which check failed; a response does not, except for a wrong Host.
"""

import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

from starlette.requests import Request

from relay.admin.auth import GuessLimits
from relay.admin.page.access import address
from relay.admin.page.access.address import BrowserAddress, EarlyRefusal
from relay.admin.page.access.visitor import (
    IDENTIFIER_BYTES,
    AdminTokens,
    CheckFailure,
    Cookie,
    Visitor,
    check_sender,
    check_token,
    session_cookie,
)
from relay.core.clock import Clock
from relay.core.config_values import Network
from relay.core.errors import StoreError
from relay.core.hosts import is_allowed
from relay.store.sessions import Role, Sessions
from relay.telemetry import log


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedIn:
    """A login succeeded."""

    role: Role
    set_cookies: tuple[str, str] = field(repr=False)
    """Values of the Set-Cookie headers: of the session, and of the known browser."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginRefused:
    """A login failed."""

    reason: Literal["sender", "plain_http", "too_many", "wrong"]
    """`sender`: the form came from another site; `plain_http`: the cookie could be read."""
    wait_s: int = 0
    """Time until the next try, with `too_many`."""


class AccessControl:
    """Identifies visitors and checks their forms; its methods raise Refusal for a wrong Host.

    The callables are called for every request, because a reload may change their values.
    """

    def __init__(
        self,
        *,
        sessions: Sessions,
        limits: GuessLimits,
        clock: Clock,
        tokens: Callable[[], AdminTokens],
        allowed_hosts: Callable[[], Sequence[str]],
        trusted_proxies: Callable[[], Sequence[Network]],
    ) -> None:
        self._sessions = sessions
        self._limits = limits
        self._clock = clock
        self._tokens = tokens
        self._allowed_hosts = allowed_hosts
        self._trusted_proxies = trusted_proxies
        self._log = log.Sampled(clock)

    def refusal(self, request: Request) -> EarlyRefusal | None:
        """Return why a request gets no page, and log it; to be called first."""
        try:
            self.place(request)
        except EarlyRefusal as error:
            client = None if request.client is None else request.client.host
            self._log.line("page.refused", reason=error.reason, client=client)
            return error
        return None

    def place(self, request: Request) -> BrowserAddress:
        """Return the URL of a request as the browser sees it, and its client."""
        place = address.place_of(request, trusted_proxies=self._trusted_proxies())
        if not is_allowed(place.host, self._allowed_hosts()):
            raise EarlyRefusal(
                421,
                "host",
                "The page is not served under this host: add it to admin.allowed_hosts.",
            )
        return place

    async def visitor(self, request: Request, *, active: bool) -> Visitor | None:
        """Return who sent a request; None if a login is needed. Raises StoreError.

        `active` is false for polls and streams, which must not keep a session alive.
        """
        place, tokens = self.place(request), self._tokens()
        if not tokens:
            is_local = place.is_direct_from_loopback
            return _visitor("viewer", None, place) if is_local else None
        identifier = _identifier(request, session_cookie(place))
        if identifier is None:
            return None
        fingerprints = tokens.fingerprints(self._sessions.fingerprint).values()
        now_ms = self._clock.now_ms()
        session = await self._sessions.find(identifier, fingerprints=fingerprints, now_ms=now_ms)
        if session is None:
            return None
        if active:
            # Ignored: the page must stay readable when the disk is full.
            with suppress(StoreError):
                await self._sessions.seen(identifier, now_ms=now_ms)
        return _visitor(session.role, identifier, place)

    def refresh_target(self, request: Request) -> str | None:
        """Return where a request without visitor has to refresh to, before it gets the login."""
        place = self.place(request)
        if not self._tokens() or _identifier(request, session_cookie(place)) is not None:
            return None
        return address.refresh_target(request, place)

    def check_form(
        self, request: Request, visitor: Visitor, form_token: str
    ) -> CheckFailure | None:
        """Check a form that any role may send, such as the logout; log and return a failure."""
        place = self.place(request)
        failure = check_sender(request, place) or check_token(visitor.identifier, form_token)
        return self._checked(place, failure)

    def check_reading(
        self, request: Request, visitor: Visitor, form_token: str
    ) -> CheckFailure | None:
        """Check a form that changes nothing; without any token, only its sender is checked."""
        if not visitor.is_local_without_token:
            return self.check_form(request, visitor, form_token)
        place = self.place(request)
        return self._checked(place, check_sender(request, place))

    def check_change(
        self, request: Request, visitor: Visitor, form_token: str
    ) -> CheckFailure | None:
        """Check a form that changes something; log and return a failure."""
        failure = self.check_form(request, visitor, form_token)
        if failure is not None or visitor.role == "admin":
            return failure
        return self._checked(self.place(request), "role")

    async def log_in(self, request: Request, token: str) -> LoggedIn | LoginRefused:
        """Open a new session, and end the one that the browser had. Raises StoreError."""
        place = self.place(request)
        cookie = session_cookie(place)
        if (failure := check_sender(request, place)) is not None:
            self._checked(place, failure)
            return LoginRefused(reason="sender")
        if cookie is None:
            return self._login_refused(place, LoginRefused(reason="plain_http"))
        known = cookie.of_browser()
        taken = self._limits.take(place.sender, token, browser=known.read(request))
        if taken.wait_s:
            return self._login_refused(place, LoginRefused(reason="too_many", wait_s=taken.wait_s))
        tokens = self._tokens()
        if (role := tokens.role_of(token)) is None:
            self._limits.wrong(taken)
            return self._login_refused(place, LoginRefused(reason="wrong"))
        browser = taken.browser or secrets.token_bytes(IDENTIFIER_BYTES)
        self._limits.right(taken, role, browser=browser)
        fingerprint = tokens.fingerprints(self._sessions.fingerprint)[role]
        identifier = await self._open(role, fingerprint, place)
        if (previous := cookie.read(request)) is not None:
            with suppress(StoreError):
                await self._sessions.close(previous)
        return LoggedIn(role=role, set_cookies=(cookie.set(identifier), known.set(browser)))

    async def log_out(self, request: Request, visitor: Visitor) -> str | None:
        """End the session; return the Set-Cookie header that removes the cookie.

        Returns None without a session. Raises StoreError, and the session goes on.
        """
        cookie = session_cookie(self.place(request))
        if visitor.identifier is None or cookie is None:
            return None
        await self._sessions.close(visitor.identifier)
        log.get().info("logout.done", actor=visitor.role, client=visitor.address)
        return cookie.delete()

    async def _open(self, role: Role, fingerprint: bytes, place: BrowserAddress) -> bytes:
        identifier = secrets.token_bytes(IDENTIFIER_BYTES)
        await self._sessions.open(
            identifier,
            role=role,
            fingerprint=fingerprint,
            address=place.client,
            now_ms=self._clock.now_ms(),
        )
        log.get().info("login.done", actor=role, client=place.client)
        return identifier

    def _checked(self, place: BrowserAddress, failure: CheckFailure | None) -> CheckFailure | None:
        if failure is not None:
            self._log.line("form.refused", reason=failure, client=place.client)
        return failure

    def _login_refused(self, place: BrowserAddress, refused: LoginRefused) -> LoginRefused:
        self._log.line("login.refused", reason=refused.reason, client=place.client)
        return refused


def _identifier(request: Request, cookie: Cookie | None) -> bytes | None:
    return None if cookie is None else cookie.read(request)


def _visitor(role: Role, identifier: bytes | None, place: BrowserAddress) -> Visitor:
    return Visitor(role=role, identifier=identifier, address=place.client)
