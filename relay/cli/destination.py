"""Where `relay send` sends, and which secret signs: as given, else as the config has it."""

import time
from pathlib import Path
from typing import NamedTuple

import click
import httpx

from relay.core.authentication import SourceSettings
from relay.core.config_values import Secret
from relay.core.errors import ConfigError
from relay.server import address as endpoint
from relay.video_service.sender import parse_url

DEFAULT_URL = "http://127.0.0.1:8080/webhooks"
DEFAULT_SECRET = "env:RELAY_SECRET"  # noqa: S105 - a reference, not a secret


class Destination(NamedTuple):
    """A source's URL, a secret that signs for it, and the header that carries the signature."""

    url: httpx.URL
    secret: Secret
    header: str = "Service-Signature"


def destination(
    *, url: httpx.URL | None, secret: Secret | None, path: Path | None, source: str | None
) -> Destination:
    """Complete what is given; raises ConfigError where the config is needed and bad."""
    if url is not None and secret is not None:
        return Destination(url, secret)
    # Here, because `send --help` and a send with both need none of it.
    from relay.config import default_path, load_listen_address, load_sources  # noqa: PLC0415

    file = path or default_path()
    if path is None and source is None and not file.exists():
        return Destination(url or parse_url(DEFAULT_URL), secret or _default_secret())
    try:
        chosen = _chosen(load_sources(file), name=source, url=url)
        address = load_listen_address(file)
    except ConfigError as error:
        error.add_note("give --url and --secret to send without this config")
        raise
    return Destination(
        url or parse_url(endpoint.url(address) + chosen.path),
        secret or _valid_secret(chosen),
        chosen.signature_header,
    )


def _chosen(
    sources: tuple[SourceSettings, ...], *, name: str | None, url: httpx.URL | None
) -> SourceSettings:
    if name is None:
        of_url = (source for source in sources if url is not None and source.path == url.path)
        return next(of_url, sources[0])
    named = next((source for source in sources if source.name == name), None)
    if named is None:
        known = ", ".join(source.name for source in sources)
        raise click.BadParameter(
            f"the config has no source `{name}`; there are: {known}", param_hint="--source"
        )
    return named


def _valid_secret(source: SourceSettings) -> Secret:
    now_ms = time.time_ns() // 1_000_000
    valid = (key for key in source.secrets if key.until is None or key.until > now_ms)
    return next(valid, source.secrets[0]).secret


def _default_secret() -> Secret:
    try:
        return Secret.resolve(DEFAULT_SECRET)
    except ValueError as error:
        raise click.BadParameter(
            f"{error}, and there is no config that has one", param_hint="--secret"
        ) from None
