"""Targets of redirects: only paths of the page, never another site."""

import re

from starlette.requests import Request

from relay.admin.page.access.address import Place

LENGTH_MAX = 2000

_MARK = "again=1"
_PRINTABLE = re.compile(r"/(?!/)[!-\[\]-~]*")  # ASCII without space and backslash
_SENT_ANYWAY = frozenset({"none", "same-origin"})


def own_path(text: str) -> str:
    r"""Return a path and query below the prefix that are safe to go to, else "/".

    Browsers read `//host`, `/\host` and what follows a tab as another site (Prometheus,
    CVE-2021-29622), and `..` leads to the neighbours behind the same proxy.
    """
    if len(text) > LENGTH_MAX or _PRINTABLE.fullmatch(text) is None:
        return "/"
    path, _, query = text.partition("#")[0].partition("?")
    if {".", ".."} & set(path.lower().replace("%2e", ".").split("/")):
        return "/"
    kept = "&".join(part for part in query.split("&") if part != _MARK)
    return f"{path}?{kept}" if kept else path


def own_target(request: Request, place: Place) -> str:
    """Return the path and query of a request, below the prefix."""
    return own_path(f"{place.path}?{request.scope['query_string'].decode('latin-1')}")


def refresh_target(request: Request, place: Place) -> str | None:
    """Return the URL to refresh to when a request has no cookie, or None.

    The browser sends no SameSite=Strict cookie with a link from another site, but does so once our
    own page refreshes. The mark in the URL prevents a loop.
    """
    sites = set(request.headers.getlist("sec-fetch-site"))
    if request.method != "GET" or "again" in request.query_params or sites & _SENT_ANYWAY:
        return None
    target = own_target(request, place)
    return place.to(f"{target}{'&' if '?' in target else '?'}{_MARK}")
