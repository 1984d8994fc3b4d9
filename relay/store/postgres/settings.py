"""`[store]` with `type = "postgres"`, apart because a config is read without the engine."""

from typing import ClassVar, Literal

from relay.core.config_values import Secret
from relay.store import StoreSettings


class PostgresSettings(StoreSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[store]`."""

    changeable: ClassVar[tuple[str, ...]] = ("dsn",)

    type: Literal["postgres"] = "postgres"
    dsn: Secret
    """In libpq's form, as keywords or URI: several hosts, `sslmode` and `passfile` all work."""
    schema: str = "relay"
    pool_size: int = 8
    """Connections of this relay: one of each purpose, and the others for operators' reads."""
