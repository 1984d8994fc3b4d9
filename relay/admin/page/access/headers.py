"""Security headers of the page's responses, and the app that adds them."""

from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from relay.admin.page.access.address import EarlyRefusal
from relay.admin.page.access.control import AccessControl

_POLICY = (
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self'",
    "connect-src 'self'",
    "form-action 'self'",
    "base-uri 'none'",
    "frame-ancestors 'none'",
    "require-trusted-types-for 'script'",
    "trusted-types 'none'",
)
# Chromium complains in its console about features that it does not know.
_FEATURES_OFF = (
    *("accelerometer", "autoplay", "camera", "clipboard-read", "display-capture"),
    *("encrypted-media", "fullscreen", "geolocation", "gyroscope", "hid", "idle-detection"),
    *("local-fonts", "magnetometer", "microphone", "midi", "payment", "picture-in-picture"),
    *("publickey-credentials-get", "screen-wake-lock", "serial", "storage-access", "sync-xhr"),
    *("usb", "window-management", "xr-spatial-tracking"),
)

SECURITY_HEADERS: Mapping[str, str] = MappingProxyType(
    {
        "Content-Security-Policy": "; ".join(_POLICY),
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        # The buttons that copy an id or a command write to the clipboard.
        "Permissions-Policy": ", ".join(
            [*(f"{feature}=()" for feature in _FEATURES_OFF), "clipboard-write=(self)"]
        ),
        # With `no-referrer`, browsers send `Origin: null` with our own forms.
        "Referrer-Policy": "same-origin",
        "Cache-Control": "no-store",
    }
)
"""Headers of every page; assets replace only Cache-Control."""

LOGOUT_HEADERS: Mapping[str, str] = MappingProxyType({"Clear-Site-Data": '"cache"'})
"""Added to the response to a logout; not "cookies", which would clear the neighbours' too."""


def secured(app: ASGIApp, access: AccessControl) -> ASGIApp:
    """Add the security headers to every response, which keeps its own Cache-Control.

    Routes are below the prefix of a proxy, whether it strips that or not.
    """

    async def with_headers(scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(EarlyRefusal):
            scope["root_path"] = prefix = access.place(Request(scope)).prefix
            if prefix and scope["path"] == prefix:
                scope["path"] += "/"  # else it has no route

        async def send_secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await app(scope, receive, send_secured)

    return with_headers
