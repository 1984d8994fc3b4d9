"""Notifies the running relay of a changed webhook endpoint, so that its status can show it.

The video service reports no such change. A relay that is down never fails the command.
"""

from typing import Literal
from urllib.parse import quote

from relay.cli.client import connected
from relay.cli.output import safe
from relay.cli.sender_api import SenderApi
from relay.cli.target import Target
from relay.core.errors import AdminApiError, ConfigError

TIMEOUT_S = 5.0


def note(
    sender: SenderApi, change: Literal["registered", "removed"], endpoint: str | None
) -> str | None:
    """Notify the relay of a change; return the cause of a failure."""
    target = Target(path=sender.file, url=None, token=None)
    try:
        with connected(target, timeout=TIMEOUT_S) as client:
            order = {"change": change, "endpoint": endpoint}
            client.post(f"/sources/{quote(sender.source, safe='')}/endpoint", order)
    except (AdminApiError, ConfigError) as error:
        return safe(str(error))
    return None
