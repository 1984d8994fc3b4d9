"""`[store]` with `type = "postgres"`."""

from typing import Literal

import msgspec

from relay.core.config_values import Duration, Secret


class PostgresSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[store]`."""

    type: Literal["postgres"] = "postgres"
    dsn: Secret
    """In libpq's form, as keywords or URI: several hosts, `sslmode` and `passfile` all work."""
    schema: str = "relay"
    pool_size: int = 8
    """Connections of this relay."""
    payload_retention: Duration = Duration.parse("30d")
    retention: dict[str, Duration] = {}
    dedupe_retention: Duration = Duration.parse("90d")
