"""`[store]` with `type = "sqlite"`, apart because a config is read without the engine."""

from typing import Literal

from relay.core.config_values import Size
from relay.store import StoreSettings


class SqliteSettings(StoreSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[store]`."""

    type: Literal["sqlite"] = "sqlite"
    path: str = "data/relay.db"
    min_free: Size = Size.parse("256MiB")
    """Free space below which nothing is accepted, so that there is room to settle."""
