"""The demo's environment: a folder with config and secret, and a pipe for stdout."""

import asyncio
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TextIO

from relay.core.config_values import Address, Secret
from relay.core.errors import ListenFailed
from relay.server.listener import bind

PATH = "/webhooks"
TOKEN_BYTES = 12
LINE_MAX = 4 << 20
"""Maximum length of a line of the sink, in bytes; `max_body` is 1 MiB."""

_CONFIG = """\
# The config of this demo; the folder is removed when the demo ends.

[server]
listen = "{listen}"
admin_listen = "{admin_listen}"

[store]
path = {store}
min_free = "16MiB"

[admin]
token = {token}

[log]
format = "console"
level = "error"

[[source]]
name = "main"
path = "{path}"
secrets = [{secret}]

[[sink]]
name = "console"
type = "stdout"
events = ["*", "webhook.test"]
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """The addresses of the demo's servers: the usual ones where they are free."""

    listen: Address
    admin_listen: Address
    service: Address
    """That of the video service's stand-in."""

    @classmethod
    def free(cls) -> Self:
        return cls(
            listen=_free_address(8080),
            admin_listen=_free_address(9464),
            service=_free_address(8090),
        )

    @property
    def webhook_url(self) -> str:
        return f"{self.listen.url()}{PATH}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The demo's files, the secret in one of them, and its addresses."""

    config: Path
    secret_file: Path
    secret: Secret
    token: Secret
    """Opens the page and the admin API."""
    key: Secret
    """Opens the stand-in's API."""
    webhook_url: str
    admin_url: str
    service_url: str

    @classmethod
    def build(cls, folder: Path, addresses: Addresses, *, secret: Secret, key: Secret) -> Self:
        """Write the secret's file and the config."""
        environment = cls(
            config=folder / "config.toml",
            secret_file=folder / "secret",
            secret=secret,
            # Short enough to be copied by hand.
            token=Secret(secrets.token_hex(TOKEN_BYTES)),
            key=key,
            webhook_url=addresses.webhook_url,
            admin_url=addresses.admin_listen.url(),
            service_url=addresses.service.url(),
        )
        environment.secret_file.write_text(f"{secret.reveal()}\n", encoding="utf-8")
        text = _CONFIG.format(
            store=json.dumps(str(folder / "relay.db"), ensure_ascii=False),
            token=json.dumps(environment.token.reveal()),
            secret=json.dumps(f"file:{environment.secret_file}", ensure_ascii=False),
            path=PATH,
            listen=addresses.listen,
            admin_listen=addresses.admin_listen,
        )
        environment.config.write_text(text, encoding="utf-8")
        return environment


@contextmanager
def pipe() -> Iterator[tuple[TextIO, TextIO]]:
    """Open a pipe."""
    read_fd, write_fd = os.pipe()
    with os.fdopen(read_fd) as read_end, os.fdopen(write_fd, "w") as write_end:
        yield read_end, write_end


async def read_lines(read_end: TextIO) -> asyncio.StreamReader:
    """Read one end of a pipe without blocking the event loop."""
    lines = asyncio.StreamReader(limit=LINE_MAX)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(lines), read_end
    )
    return lines


def _free_address(port: int) -> Address:
    try:
        bind(Address(f"127.0.0.1:{port}")).close()
    except ListenFailed:
        with bind(Address("127.0.0.1:0")) as bound:
            port = bound.getsockname()[1]
    return Address(f"127.0.0.1:{port}")
