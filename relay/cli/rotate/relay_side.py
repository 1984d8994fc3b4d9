"""The running relay's part of a rotation."""

from typing import Any
from urllib.parse import quote

from relay.cli.client import Client

QUARANTINE_MS = 15 * 60 * 1000
"""Time for which requests are kept, and so in which an interrupted run is best repeated."""


class RelaySide:
    """The rotation of one source in the running relay; every method raises AdminApiError."""

    def __init__(self, client: Client, source: str) -> None:
        self._client = client
        self._path = f"/sources/{quote(source, safe='')}/rotation"

    def state(self) -> Any:
        return self._client.get(self._path)

    def keep(self) -> Any:
        """Have requests that match no secret kept for a while."""
        return self._client.post(self._path, {"duration_ms": QUARANTINE_MS})

    def admit(self) -> Any:
        """Use the secret in the file, admit the kept requests that it verifies, keep no others."""
        if self.state()["state"] != "none":
            return self._client.post(f"{self._path}/finish")
        self._client.reload()  # the quarantine has expired meanwhile
        return self.state()
