"""Settings of the tables `[server]` and `[admin]`, which no single room owns."""

import msgspec

from relay.core.config_values import Address, Duration, Network, Secret, Size


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[server]`: the two listeners and the limits of a request."""

    listen: Address = Address.parse("127.0.0.1:8080")
    admin_listen: Address = Address.parse("127.0.0.1:9464")
    max_body: Size = Size.parse("1MiB")
    body_timeout: Duration = Duration.parse("5s")
    """Shorter than the sender's timeout of 10 s (video-service.md, section 6)."""
    ack_timeout: Duration = Duration.parse("5s")
    drain_timeout: Duration = Duration.parse("10s")
    trusted_proxies: tuple[Network, ...] = (Network.parse("127.0.0.1"), Network.parse("::1"))


class AdminSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[admin]`; the admin API is off without a token."""

    token: Secret | None = None
    viewer_token: Secret | None = None
    """Opens the page without personal data, and nothing of the API."""
    allowed_hosts: tuple[str, ...] = ("localhost", "127.0.0.1", "::1")
    """Hosts of the page, without ports."""
