"""The `url` of any sink that has one, and other URLs of it; it may ask for TLS."""

from collections.abc import Callable
from typing import TypeVar
from urllib.parse import urlsplit

import httpx

from relay.core.config_values import Secret
from relay.outbound import tls

Url = TypeVar("Url")


def parse(
    secret: Secret, *, schemes: tuple[str, str], kind: Callable[[str], Url], key: str = "url"
) -> Url:
    """Return the URL of a key as the client's `kind`.

    Raises ValueError, which does not repeat the URL.
    """
    try:
        url, parts = kind(secret.reveal()), urlsplit(secret.reveal())
        is_usable = parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
    except (httpx.InvalidURL, ValueError):  # their texts repeat the URL
        is_usable = False
    if not is_usable:
        raise ValueError(f"{key}: expected {schemes[0]}:// or {schemes[1]}:// and a host")
    return url


def uses_tls(scheme: str, files: tls.TlsSettings, *, secure: str) -> bool:
    """Whether the scheme is the `secure` one; raises ValueError if files are given in vain."""
    if scheme != secure and tls.is_asked_for(files):
        raise ValueError(f"url: expected {secure}://, because TLS files are given")
    return scheme == secure
