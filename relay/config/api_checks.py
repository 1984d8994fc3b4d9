"""Checks of a `[source.api]` that concern several values, or names that another room owns."""

from urllib.parse import urlsplit

from relay.config.table import Findings, Table
from relay.core.config_values import Address
from relay.core.setting_errors import suggestion
from relay.video_service.api.fields import NAMES


def check_api(api: Table, findings: Findings) -> None:
    """Note faults and warnings of a sender's API."""
    url = urlsplit(api.get("base_url") or "")
    if url.scheme == "http" and not _is_loopback(url.hostname or ""):
        findings.warn(api.at("base_url"), "is not https: the key can be read on its way")
    for key, name in (api.get("fields") or {}).items():
        place = api.at("fields").key(key)
        if key not in NAMES:
            hint = suggestion(key, NAMES) or "; docs/video-service.md lists the keys"
            findings.fault(place, f"is not a known key{hint}")
        elif not name:
            findings.fault(place, "is empty: expected the field's name in answers")


def _is_loopback(host: str) -> bool:
    return Address(f"[{host}]:1" if ":" in host else f"{host}:1").is_loopback
