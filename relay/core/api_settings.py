"""`[source.api]`: the sender's API. Apart, because its client knows nothing else of a source."""

import msgspec

from relay.core.config_values import Duration, Secret
from relay.core.delivery_rules import GIVE_UP_S
from relay.core.proxies import OutboundSettings


class ApiSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a source's API is, and the key that it is asked with."""

    base_url: str
    """Its address without `/v1`, with which every path begins."""
    key: Secret
    endpoint: str | None = None
    """The id of the webhook endpoint; None until it is registered."""
    give_up_after: Duration = Duration(round(GIVE_UP_S * 1000))
    """Time from an event's first attempt until the sender has given up; shorter for a sandbox."""
    fields: dict[str, str] = {}
    """Other names of fields in answers, by the keys of `video_service.api.fields`."""
    outbound: OutboundSettings = OutboundSettings()
    """The document's table, which the reader puts here: no key of this one."""
