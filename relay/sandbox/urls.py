"""The check of URLs that callers give."""

import httpx

from relay.outbound.http import client as http_client
from relay.sandbox.errors import Refusal


def valid_url(url: str, *, field: str) -> str:
    """Return an http or https URL with a host; raises Refusal."""
    try:
        parsed = httpx.URL(url)
        http_client.Endpoint.of(parsed)
    except (httpx.InvalidURL, ValueError):
        parsed = httpx.URL("")
    # httpx takes any host, and escapes its strange characters.
    if parsed.scheme not in {"http", "https"} or not parsed.host or "%" in parsed.host:
        raise Refusal(422, f"{field}: expected an http or https URL with a host.")
    return url
