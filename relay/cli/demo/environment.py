"""The demo's environment: a folder with config and secret, and a pipe for stdout."""

import asyncio
import json
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self, TextIO

import msgspec

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


class Listening(msgspec.Struct, frozen=True, kw_only=True):
    """The sockets of the demo's servers, on the usual ports where they are free.

    They listen before the servers start, so that no other program takes a port in between.
    """

    public: socket.socket
    admin: socket.socket
    service: socket.socket
    """That of the video service's stand-in."""

    @classmethod
    @contextmanager
    def opened(cls) -> Iterator[Self]:
        with _listen(8080) as public, _listen(9464) as admin, _listen(8090) as service:
            yield cls(public=public, admin=admin, service=service)

    @property
    def webhook_url(self) -> str:
        return f"{_address(self.public).url()}{PATH}"


class Environment(msgspec.Struct, frozen=True, kw_only=True):
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
    def build(cls, folder: Path, listening: Listening, *, secret: Secret, key: Secret) -> Self:
        """Write the secret's file and the config."""
        admin = _address(listening.admin)
        environment = cls(
            config=folder / "config.toml",
            secret_file=folder / "secret",
            secret=secret,
            # Short enough to be copied by hand.
            token=Secret(secrets.token_hex(TOKEN_BYTES)),
            key=key,
            webhook_url=listening.webhook_url,
            admin_url=admin.url(),
            service_url=_address(listening.service).url(),
        )
        environment.secret_file.write_text(f"{secret.reveal()}\n", encoding="utf-8")
        text = _CONFIG.format(
            store=json.dumps(str(folder / "relay.db"), ensure_ascii=False),
            token=json.dumps(environment.token.reveal()),
            secret=json.dumps(f"file:{environment.secret_file}", ensure_ascii=False),
            path=PATH,
            listen=_address(listening.public),
            admin_listen=admin,
        )
        environment.config.write_text(text, encoding="utf-8")
        return environment


@contextmanager
def pipe() -> Iterator[tuple[TextIO, TextIO]]:
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


def _listen(port: int) -> socket.socket:
    try:
        return bind(Address(f"127.0.0.1:{port}"))
    except ListenFailed:
        return bind(Address("127.0.0.1:0"))


def _address(listening: socket.socket) -> Address:
    return Address.of(listening.getsockname())
