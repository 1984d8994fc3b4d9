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

PORTS = {"listen": 8080, "admin_listen": 9464}
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
path = "/webhooks"
secrets = [{secret}]

[[sink]]
name = "console"
type = "stdout"
events = ["*", "webhook.test"]
"""


@dataclass(frozen=True)
class Environment:
    """The demo's files, and the secret in one of them."""

    config: Path
    secret_file: Path
    secret: Secret
    token: Secret
    """Opens the page and the admin API."""

    @classmethod
    def build(cls, folder: Path) -> Self:
        """Write a new secret, and a config with free ports."""
        environment = cls(
            config=folder / "config.toml",
            secret_file=folder / "secret",
            secret=Secret(secrets.token_urlsafe(32)),
            # Short enough to be copied by hand.
            token=Secret(secrets.token_hex(TOKEN_BYTES)),
        )
        secret = environment.secret.reveal()
        environment.secret_file.write_text(f"{secret}\n", encoding="utf-8")
        addresses = {key: _free_address(port) for key, port in PORTS.items()}
        text = _CONFIG.format(
            store=json.dumps(str(folder / "relay.db"), ensure_ascii=False),
            token=json.dumps(environment.token.reveal()),
            secret=json.dumps(f"file:{environment.secret_file}", ensure_ascii=False),
            **addresses,
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


def _free_address(port: int) -> str:
    try:
        bind(Address(f"127.0.0.1:{port}")).close()
    except ListenFailed:
        with bind(Address("127.0.0.1:0")) as bound:
            port = bound.getsockname()[1]
    return f"127.0.0.1:{port}"
