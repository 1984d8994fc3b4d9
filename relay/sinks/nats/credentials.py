"""Addresses of NATS servers, and the credentials to log in with."""

import re
from base64 import b64encode
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec
import nkeys

from relay.core.config_values import read_text


class NatsServer(msgspec.Struct, frozen=True):
    """One address to try, with its credentials beside it rather than in it."""

    url: str
    tls: bool
    login: Mapping[str, Any]


def servers(addresses: str, *, secure: bool) -> tuple[NatsServer, ...]:
    """Read comma-separated addresses; raises ValueError, whose text repeats none of them."""
    return tuple(_server(text.strip(), secure=secure) for text in addresses.split(","))


def _server(text: str, *, secure: bool) -> NatsServer:
    try:
        url = urlsplit(text if "://" in text else f"nats://{text}")
        host, port = url.hostname, url.port
    except ValueError:
        host = None
    if not host or url.scheme not in ("nats", "tls") or url.path.strip("/") or url.query:
        raise ValueError("servers: expected nats:// or tls:// addresses with commas between them")
    names = ("user", "password") if url.password is not None else ("token",)
    values = (unquote(text) for text in (url.username, url.password) if text is not None)
    address = f"[{host}]" if ":" in host else host
    return NatsServer(
        f"{url.scheme}://{address}:{port or 4222}",
        tls=secure or url.scheme == "tls",
        login=dict(zip(names, values, strict=False)),
    )


def credentials(path: str | None) -> dict[str, Any]:
    """Read a user's JWT and NKEY seed as options of a connection; there are none without a path.

    Raises ValueError, whose text repeats nothing of the file.
    """
    if path is None:
        return {}
    try:
        return _credentials(read_text(path))
    except ValueError as error:
        reason = f"credentials_file: {error}"
    raise ValueError(reason)


def _credentials(text: str) -> dict[str, Any]:
    jwt = re.search(r"BEGIN NATS USER JWT-+\s+(\S+)\s", text)
    seed = re.search(r"BEGIN USER NKEY SEED-+\s+(\w+)\s", text)
    if jwt is None or seed is None:
        raise ValueError("holds no user JWT with an NKEY seed")
    try:
        pair = nkeys.from_seed(bytearray(seed[1], "ascii"))
    except Exception:  # noqa: BLE001  it raises anything, with the seed in some texts
        raise ValueError("holds no usable NKEY seed") from None
    return {
        "user_jwt_cb": jwt[1].encode,
        "signature_cb": lambda nonce: b64encode(pair.sign(nonce.encode())),
    }
