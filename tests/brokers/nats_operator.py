"""A real nats-server in operator mode: users log in with a JWT that their account has signed."""

import json
import os
import time
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import Any

import nats
import nkeys
from nats.aio.client import Client, RawCredentials

from tests.brokers.nats import NatsServer

CONFIG = """
listen: "127.0.0.1:{port}"
http: "127.0.0.1:{monitor}"
jetstream {{ store_dir: "{folder}" }}
operator: "{operator}"
system_account: "{system}"
resolver: MEMORY
resolver_preload: {{ {system}: "{system_jwt}", {account}: "{account_jwt}" }}
"""

CREDENTIALS = """-----BEGIN NATS USER JWT-----
{jwt}
------END NATS USER JWT------

-----BEGIN USER NKEY SEED-----
{seed}
------END USER NKEY SEED------
"""

_LIMITS = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1)
_JETSTREAM = dict.fromkeys(("mem_storage", "disk_storage", "streams", "consumer"), -1)
"""Without these an account has none, as the system's account has to."""


class Party:
    """An operator, an account or a user: whoever has a key, and may sign for others."""

    def __init__(self, prefix: int) -> None:
        self.seed = nkeys.encode_seed(os.urandom(32), prefix).decode()
        self._pair = nkeys.from_seed(bytearray(self.seed, "ascii"))
        self.id = self._pair.public_key.decode()

    def vouch(self, other: "Party", kind: str, *, ends_s: float = 0, **claims: Any) -> str:
        """Sign a JWT of version 2; 0 is no end, else seconds from now."""
        about = {"type": kind, "version": 2, **claims}
        now_s = int(time.time())
        document = {"iss": self.id, "sub": other.id, "name": kind, "iat": now_s, "nats": about}
        if ends_s:
            document["exp"] = int(now_s + ends_s)
        parts = [_encode({"typ": "JWT", "alg": "ed25519-nkey"}), _encode(document)]
        signed = ".".join(parts)
        return f"{signed}.{_base64(self._pair.sign(signed.encode()))}"


class OperatorServer(NatsServer):
    """`url` holds no login; the account can let users in, and turn them out."""

    def __init__(self, folder: Path) -> None:
        self._operator = Party(nkeys.PREFIX_BYTE_OPERATOR)
        self._system = Party(nkeys.PREFIX_BYTE_ACCOUNT)
        self._reporter = Party(nkeys.PREFIX_BYTE_ACCOUNT)
        # Signed once: a server takes up no other operator while it runs.
        self._operator_jwt = self._operator.vouch(self._operator, "operator")
        self._revoked: dict[str, int] = {}
        super().__init__(folder)
        self.url = f"nats://127.0.0.1:{self.port}"
        self._publish()

    def user(self) -> Party:
        return Party(nkeys.PREFIX_BYTE_USER)

    def credentials(self, user: Party, *, ends_s: float = 0, by: Party | None = None) -> str:
        """Give the text of a .creds file, signed by the account unless another is named."""
        limits = {"subs": -1, "data": -1, "payload": -1, "pub": {}, "sub": {}}
        jwt = (by or self._reporter).vouch(user, "user", ends_s=ends_s, **limits)
        return CREDENTIALS.format(jwt=jwt, seed=user.seed)

    async def revoke(self, user: Party) -> None:
        self._revoked[user.id] = int(time.time()) + 1
        self._publish()
        await self.reread()

    async def admin(self) -> Client:
        credentials = RawCredentials(self.credentials(self.user()))
        return await nats.connect(self.url, user_credentials=credentials, allow_reconnect=False)

    def _publish(self) -> None:
        """Write the config with what the operator says of the accounts."""
        vouch = self._operator.vouch
        limits = {**_LIMITS, "wildcards": True}
        self.write(
            CONFIG.format(
                port=self.port,
                monitor=self.monitor,
                folder=self.folder,
                operator=self._operator_jwt,
                system=self._system.id,
                system_jwt=vouch(self._system, "account", limits=limits),
                account=self._reporter.id,
                account_jwt=vouch(
                    self._reporter,
                    "account",
                    limits=limits | _JETSTREAM,
                    revocations=self._revoked,
                ),
            )
        )


def _encode(document: dict[str, Any]) -> str:
    return _base64(json.dumps(document).encode())


def _base64(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode()
