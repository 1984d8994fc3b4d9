"""The relay that a command talks to, from the config or from --url and --token."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import httpx
import msgspec

from relay.cli.parameters import config_option, parsed
from relay.config import default_path, load_admin_address, load_admin_token, rules
from relay.core import foreign_json
from relay.core.config_values import Secret
from relay.core.errors import AdminApiError, ConfigError

T = TypeVar("T")


class RelayTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a command that select a relay; the config supplies absent ones."""

    path: Path | None
    url: httpx.URL | None
    token: Secret | None

    @property
    def config(self) -> Path:
        """The config's path; the file is read only for an absent option."""
        return self.path or default_path()

    def resolve(self) -> tuple[httpx.URL, Secret]:
        """Return the URL of the admin listener and its token.

        Raises ConfigError for a faulty config, and AdminApiError if it has no token.
        """
        url, token = self.resolve_url(), self.token or self._read(load_admin_token)
        if token is None:
            raise AdminApiError(
                f"{self.config}: [admin] token is not set, so the relay's admin API is off; "
                "set it, or give --token"
            )
        return url, token

    def resolve_url(self) -> httpx.URL:
        """Return the URL of the admin listener; raises ConfigError."""
        return self.url or httpx.URL(self._read(load_admin_address).url())

    def _read(self, load: Callable[[Path], T]) -> T:
        try:
            return load(self.config)
        except ConfigError as error:
            error.add_note(_WITHOUT_CONFIG)
            raise


_WITHOUT_CONFIG = (
    "to reach the running relay without this config, give --url http://HOST:PORT of its admin "
    "listener and --token REF"
)


def _admin_url(text: str) -> httpx.URL:
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL:
        url = httpx.URL("")
    if url.scheme not in {"http", "https"} or not url.host or url.userinfo or url.query:
        raise ValueError("expected a URL such as http://127.0.0.1:9464")
    return url


def _token(text: str) -> Secret:
    token = Secret.resolve(text)
    fault = rules.unsendable(token)
    if fault is not None:
        raise ValueError(f"the token {fault}")
    return token


url_option = click.option(
    "--url",
    metavar="URL",
    callback=parsed(_admin_url),
    help="The relay's admin listener; default: the config's.",
)
_token_option = click.option(
    "--token",
    metavar="REF",
    callback=parsed(_token),
    help="Its token: env:NAME, file:/path or the token; default: the config's.",
)


def _is_text(value: object) -> bool:
    """False for a text with bytes that are not UTF-8, which Python holds as surrogates."""
    return not isinstance(value, str) or foreign_json.whole(value) == value


def relay_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --config, --url and --token, which the command gets as one `target`."""

    @config_option
    @url_option
    @_token_option
    @functools.wraps(command)
    def targeted(
        *arguments: Any,
        path: Path | None,
        url: httpx.URL | None,
        token: Secret | None,
        **named: Any,
    ) -> Any:
        if not all(map(_is_text, named.values())):
            raise click.UsageError("an argument is not UTF-8 text, and no relay knows such a one")
        return command(*arguments, target=RelayTarget(path=path, url=url, token=token), **named)

    return targeted
