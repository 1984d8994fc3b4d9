"""The parts of a sandbox, apart so that its API need not know who makes them."""

from collections.abc import Callable

import msgspec

from relay.sandbox.faults import Faults
from relay.sandbox.keys import Keys
from relay.sandbox.library import Library
from relay.sandbox.model import Workspace
from relay.sandbox.schedule import Schedule
from relay.sandbox.uploads import Uploads
from relay.sandbox.viewing import Viewing
from relay.sandbox.webhooks import Webhooks


def _unsaved() -> None:
    pass


class Services(msgspec.Struct):
    """One workspace and all that changes it."""

    workspace: Workspace
    schedule: Schedule
    keys: Keys
    webhooks: Webhooks
    library: Library
    uploads: Uploads
    viewing: Viewing
    faults: Faults
    save: Callable[[], None] = msgspec.field(default=_unsaved)
    """Called after each change that a request made, before its answer."""
