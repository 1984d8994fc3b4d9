"""Tells the running relay what became of a webhook endpoint, so that its status can say so.

The endpoint is the video service's, which says nothing of it to the relay. The relay may be down,
or another one than this config's: that never fails the command.
"""

from typing import Literal
from urllib.parse import quote

from relay.cli.client import connected
from relay.cli.output import safe
from relay.cli.sender_api import SenderApi
from relay.cli.target import Target
from relay.core.errors import ApiError, ConfigError

TIMEOUT_S = 5.0


def note(
    sender: SenderApi, change: Literal["registered", "removed"], endpoint: str | None
) -> str | None:
    """Tell the relay of a change; return why it could not be told."""
    target = Target(path=sender.file, url=None, token=None)
    try:
        with connected(target, timeout=TIMEOUT_S) as client:
            order = {"change": change, "endpoint": endpoint}
            client.post(f"/sources/{quote(sender.source, safe='')}/endpoint", order)
    except (ApiError, ConfigError) as error:
        return safe(str(error))
    return None
