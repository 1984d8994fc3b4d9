"""Checks that a form was sent by one of our pages (cross-site request forgery)."""

import hashlib
import hmac
from typing import Literal

from starlette.requests import Request

from relay.admin.page.access.address import Place

CheckFailure = Literal["origin", "fetch_site", "session", "form_token", "role"]
"""The check that a form failed, for the log only."""


def form_token(identifier: bytes) -> str:
    return hmac.new(identifier, b"form", hashlib.sha256).hexdigest()


def check_sender(request: Request, place: Place) -> CheckFailure | None:
    """Check that the browser sent the form from a page of the same origin."""
    if request.headers.getlist("origin") != [place.origin]:
        return "origin"
    # Browsers send it only over TLS and to loopback, so it can refuse, but not replace the Origin.
    if any(site != "same-origin" for site in request.headers.getlist("sec-fetch-site")):
        return "fetch_site"
    return None


def check_token(identifier: bytes | None, presented: str) -> CheckFailure | None:
    """Check the form's token against the session's."""
    if identifier is None:
        return "session"
    expected = form_token(identifier).encode()
    if not hmac.compare_digest(expected, presented.encode("utf-8", "surrogatepass")):
        return "form_token"
    return None
