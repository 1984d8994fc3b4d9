"""The sender's API that a command asks, from the config."""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from relay.cli.output import Output, printing
from relay.cli.parameters import config_option, name_option
from relay.config import default_path, load_apis
from relay.core.api_settings import ApiSettings
from relay.core.errors import SenderApiMissing
from relay.video_service.api.client import Api
from relay.video_service.api.errors import Reason, ServiceApiError

T = TypeVar("T")


class SenderApi(NamedTuple):
    """The API of one source."""

    file: Path
    source: str
    settings: ApiSettings

    def ask(self, request: Callable[[Api], Awaitable[T]]) -> T:
        """Send requests and return their result; raises ServiceApiError."""

        async def asking() -> T:
            async with Api(self.settings) as api:
                return await request(api)

        try:
            return asyncio.run(asking())
        except ServiceApiError as error:
            if (advice := _ADVICE.get(error.reason)) is not None:
                error.add_note(advice)
            raise

    @property
    def endpoint(self) -> str:
        """The id of the webhook endpoint; raises SenderApiMissing without one."""
        if self.settings.endpoint is None:
            raise SenderApiMissing(
                f"{self.file}: [source.api] of {self.source} has no endpoint; put in the id that "
                "`relay endpoint register` printed"
            )
        return self.settings.endpoint


_ADVICE: Mapping[Reason, str] = {
    "key refused": "check `key` of its [source.api]; it is wrong or was revoked",
    "no access": "give its [source.api] a `key` with the access Admin",
    "not found": "check `endpoint` and `base_url` of its [source.api]",
    "redirect refused": "check `base_url` of its [source.api]",
    "cannot connect": "check `base_url` of its [source.api], and the network",
    "proxy failed": "check `proxy_url` of [outbound], or put the API's host into `no_proxy`",
}


def sender_api(path: Path | None, source: str | None) -> SenderApi:
    """Read the API of a source, or of the only one that has one.

    Raises ConfigError, and SenderApiMissing if there is none.
    """
    file = path or default_path()
    apis = load_apis(file)
    name = _only(apis, file) if source is None else source
    if name not in apis:
        known = f"; the sources with one: {', '.join(apis)}" if apis else ""
        raise SenderApiMissing(f"{file}: source {name} has no [source.api]{known}")
    return SenderApi(file, name, apis[name])


def _only(apis: Mapping[str, ApiSettings], file: Path) -> str:
    if not apis:
        raise SenderApiMissing(f"{file}: no source has a [source.api] with base_url and key")
    if len(apis) > 1:
        raise SenderApiMissing(
            f"{file}: several sources have a [source.api]; give --source, one of: {', '.join(apis)}"
        )
    return next(iter(apis))


def sender_command(command: Callable[..., Output]) -> Callable[..., None]:
    """Pass a command the sender's API of one source, and print its output.

    Adds --config, --source and --json.
    """

    @config_option
    @name_option("source", "The source with the API; default: the only one that has one.")
    @printing
    @functools.wraps(command)
    def asking_command(*, path: Path | None, source: str | None, **parameters: Any) -> Output:
        return command(sender_api(path, source), **parameters)

    return asking_command
