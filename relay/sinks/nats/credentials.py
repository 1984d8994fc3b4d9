"""Which NATS servers the settings name, and what they are shown to be let in."""

import re
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

import nkeys

from relay.core.config_values import read_text


@dataclass(frozen=True, slots=True)
class Server:
    """One address to try, its credentials apart."""

    url: str
    tls: bool
    login: Mapping[str, Any]


def servers(addresses: str, *, secure: bool) -> tuple[Server, ...]:
    """Read addresses with commas between them; raises ValueError, without them."""
    return tuple(_server(text.strip(), secure=secure) for text in addresses.split(","))


def _server(text: str, *, secure: bool) -> Server:
    try:
        url = urlsplit(text if "://" in text else f"nats://{text}")
        host, port = url.hostname, url.port
    except ValueError:
        host = None
    if not host or url.scheme not in ("nats", "tls") or url.path.strip("/") or url.query:
        raise ValueError("servers: expected nats:// or tls:// addresses with commas between them")
    names = ("user", "password") if url.password is not None else ("token",)
    values = (unquote(each) for each in (url.username, url.password) if each is not None)
    address = f"[{host}]" if ":" in host else host
    return Server(
        f"{url.scheme}://{address}:{port or 4222}",
        tls=secure or url.scheme == "tls",
        login=dict(zip(names, values, strict=False)),
    )


def credentials(path: str | None) -> dict[str, Any]:
    """Read a user's JWT and NKEY seed, as options for a connection, which has none without a path.

    Raises ValueError, without what was read.
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
    except Exception:  # noqa: BLE001  it raises what comes, and that may hold the seed
        raise ValueError("holds no usable NKEY seed") from None
    return {
        "user_jwt_cb": jwt[1].encode,
        "signature_cb": lambda nonce: b64encode(pair.sign(nonce.encode())),
    }
