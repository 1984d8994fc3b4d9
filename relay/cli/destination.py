"""Resolves URL and secret of `relay send` from its options and the config."""

import time
from pathlib import Path
from typing import NamedTuple

import click
import httpx

from relay.cli.parameters import named
from relay.core.authentication import SourceSettings
from relay.core.config_values import Secret
from relay.core.errors import ConfigError
from relay.video_service.sender import parse_url

DEFAULT_URL = "http://127.0.0.1:8080/webhooks"
DEFAULT_SECRET = "env:RELAY_SECRET"  # noqa: S105 - a reference, not a secret


class Destination(NamedTuple):
    """A source's URL, a valid secret of it, and its signature header."""

    url: httpx.URL
    secret: Secret
    header: str = "Service-Signature"


def destination(
    *, url: httpx.URL | None, secret: Secret | None, path: Path | None, source: str | None
) -> Destination:
    """Complete the options from the config; raises ConfigError if it is needed and faulty."""
    if url is not None and secret is not None and source is None:
        return Destination(url, secret)
    # Imported here, because `send --help` and a send with both options do not need it.
    from relay.config import default_path, load_listen_address, load_sources  # noqa: PLC0415

    file = path or default_path()
    if path is None and source is None and not file.exists():
        return Destination(url or parse_url(DEFAULT_URL), secret or _default_secret())
    try:
        chosen = _chosen(load_sources(file), name=source, url=url)
        address = load_listen_address(file)
    except ConfigError as error:
        error.add_note("to send without this config, give --url and --secret")
        raise
    return Destination(
        url or parse_url(address.url() + chosen.path),
        secret or _valid_secret(chosen),
        chosen.signature_header,
    )


def _chosen(
    sources: tuple[SourceSettings, ...], *, name: str | None, url: httpx.URL | None
) -> SourceSettings:
    if name is not None:
        return named("source", name, sources)
    of_url = (source for source in sources if url is not None and source.path == url.path)
    return next(of_url, sources[0])


def _valid_secret(source: SourceSettings) -> Secret:
    now_ms = time.time_ns() // 1_000_000
    valid = (key for key in source.secrets if key.until is None or key.until > now_ms)
    return next(valid, source.secrets[0]).secret


def _default_secret() -> Secret:
    try:
        return Secret.resolve(DEFAULT_SECRET)
    except ValueError as error:
        raise click.BadParameter(
            f"{error}, and there is no config; set it, or give --secret", param_hint="--secret"
        ) from None
