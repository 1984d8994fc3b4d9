"""What the log looks like, and which fields may stand in it."""

from typing import Literal

import msgspec


class LogSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[log]`."""

    format: Literal["json", "console"] = "json"
    level: Literal["debug", "info", "warning", "error"] = "info"
