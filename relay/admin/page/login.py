"""Login and logout."""

from collections.abc import Awaitable, Callable
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from relay.admin.page.access.address import own_path, own_target
from relay.admin.page.access.control import AccessControl, LoggedIn, LoginRefused
from relay.admin.page.access.headers import LOGOUT_HEADERS
from relay.admin.page.forms import SMALL_MAX, form
from relay.admin.page.frame import render
from relay.core.errors import StoreError

PATH = "/login"
OUTSIDE = ("/login", "/logout")
"""No targets after a login."""

_NEEDS_TLS = (
    "Logins need HTTPS, or an SSH tunnel to a loopback address. Behind a proxy with TLS, "
    "check server.trusted_proxies and its X-Forwarded-Proto."
)
_REFUSALS = {
    "sender": (403, "This form is not valid any more. Try again."),
    "plain_http": (403, _NEEDS_TLS),
    "wrong": (401, "That token is not right."),
}


def routes(access: AccessControl) -> list[Route]:
    """Build the routes, which are open to everyone."""

    async def show(request: Request) -> Response:
        return await _login(access, request, request.query_params.get("next", "/"))

    async def log_in(request: Request) -> Response:
        fields = await form(request, size_max=SMALL_MAX)
        target = _target(fields.get("next", "/"))
        try:
            result = await access.log_in(request, fields.get("token", ""))
        except StoreError as error:
            return await refused(request, 503, f"The relay cannot log you in: {error}.")
        if isinstance(result, LoginRefused):
            return await _login(access, request, target, result)
        return _entered(access, request, target, result)

    async def log_out(request: Request) -> Response:
        try:
            return await _logged_out(access, request)
        except StoreError as error:
            return await refused(request, 503, f"You are still logged in: {error}.")

    return [
        Route(PATH, _open(access, show)),
        Route(PATH, _open(access, log_in), methods=["POST"]),
        Route("/logout", _open(access, log_out), methods=["POST"]),
    ]


async def required(access: AccessControl, request: Request, *, by_script: bool) -> Response:
    """Answer a visitor without a session: once more with the cookie, then the login."""
    if by_script:
        # A script cannot see where a redirect would lead.
        return Response("Log in again.", 401, media_type="text/plain")
    place = access.place(request)
    if (again := access.refresh_target(request)) is not None:
        return await render(request, "again.html", prefix=place.prefix, to=again)
    target = own_target(request, place) if request.method == "GET" else "/"
    path = PATH if target == "/" else f"{PATH}?next={quote(target, safe='')}"
    return RedirectResponse(place.to(path), 303)


async def refused(request: Request, status: int, text: str, *, prefix: str = "") -> Response:
    """Answer a request that gets no page."""
    return await render(request, "refused.html", status, text=text, prefix=prefix)


def _open(
    access: AccessControl, answer: Callable[[Request], Awaitable[Response]]
) -> Callable[[Request], Awaitable[Response]]:
    async def checked(request: Request) -> Response:
        if (refusal := access.refusal(request)) is not None:
            return await refused(request, refusal.status, refusal.text)
        return await answer(request)

    return checked


def _entered(access: AccessControl, request: Request, target: str, result: LoggedIn) -> Response:
    response = RedirectResponse(access.place(request).to(target), 303)
    for cookie in result.set_cookies:
        response.headers.append("Set-Cookie", cookie)
    return response


async def _logged_out(access: AccessControl, request: Request) -> Response:
    visitor = await access.visitor(request, active=False)
    response = RedirectResponse(access.place(request).to(PATH), 303, LOGOUT_HEADERS)
    if visitor is None:
        return response
    fields = await form(request)
    if access.check_form(request, visitor, fields.get("form_token", "")) is not None:
        return await refused(request, 403, "The form is not valid any more. Reload the page.")
    cookie = await access.log_out(request, visitor)
    if cookie is not None:
        response.headers["Set-Cookie"] = cookie
    return response


async def _login(
    access: AccessControl, request: Request, target: str, result: LoginRefused | None = None
) -> Response:
    place = access.place(request)
    status, problem = (200, "") if result is None else _explained(result)
    response = await render(
        request,
        "login.html",
        status,
        prefix=place.prefix,
        action=place.to(PATH),
        next=_target(target),
        problem=problem,
    )
    if result is not None and result.wait_s:
        response.headers["Retry-After"] = str(result.wait_s)
    return response


def _target(text: str) -> str:
    path = own_path(text)
    return "/" if path.partition("?")[0] in OUTSIDE else path


def _explained(result: LoginRefused) -> tuple[int, str]:
    if result.reason == "too_many":
        return 429, (
            "The token was not looked at: too many wrong ones came from your address, or from all "
            f"strangers. Try again in {result.wait_s} s."
        )
    return _REFUSALS[result.reason]
