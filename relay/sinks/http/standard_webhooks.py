"""Standard Webhooks 1.0.0: the three headers that sign an outgoing request (pure).

outgoing-http.md, section 1.
"""

import base64
import binascii
import hmac
from collections.abc import Sequence

PREFIX = "whsec_"
KEY_BYTES = range(24, 65)


def key(secret: str) -> bytes:
    """Decode a signing secret: `whsec_<base64>`, or other text that the official libraries take.

    Raises ValueError, which does not repeat the secret.
    """
    if not secret.startswith(PREFIX):
        return _plain(secret)
    text = secret.removeprefix(PREFIX).rstrip("=")
    try:
        decoded = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except ValueError:
        raise ValueError(f"what follows {PREFIX} is not base64") from None
    if len(decoded) not in KEY_BYTES:
        raise ValueError(f"expected 24 to 64 bytes in base64 after {PREFIX}, got {len(decoded)}")
    return decoded


def sign(key: bytes, *, id_: str, now_s: int, body: bytes) -> str:
    """Make one signature, `v1,<base64>`, over the id as it is in the header."""
    digest = hmac.digest(key, f"{id_}.{now_s}.".encode() + body, "sha256")
    return "v1," + base64.b64encode(digest).decode()


def headers(keys: Sequence[bytes], *, id_: str, now_s: int, body: bytes) -> list[tuple[str, str]]:
    """Make the headers of one attempt, with a signature by each key, in order.

    `id_` must be a valid header value.
    """
    signed = [("webhook-id", id_), ("webhook-timestamp", str(now_s))]
    if keys:
        signatures = " ".join(sign(key, id_=id_, now_s=now_s, body=body) for key in keys)
        signed.append(("webhook-signature", signatures))
    return signed


def _plain(secret: str) -> bytes:
    # The official libraries decode any text as base64 and skip invalid characters; decoding it
    # otherwise would give a key that no consumer has.
    try:
        decoded = base64.b64decode(secret + "==")
    except (binascii.Error, ValueError):
        decoded = b""
    if not decoded:
        raise ValueError(f"expected {PREFIX} and base64, or base64 alone")
    return decoded
