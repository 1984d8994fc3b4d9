"""Hosts of other services, whose hooks end up in `slack` sinks (recipes.md, section 2)."""

from collections.abc import Mapping

_POWER_AUTOMATE = "Power Automate, the workflows of Teams"
_TEAMS = "Microsoft Teams"
_SERVICES: Mapping[str, str] = {
    "api.powerplatform.com": _POWER_AUTOMATE,
    "logic.azure.com": "Power Automate or Azure Logic Apps",
    "webhook.office.com": _TEAMS,
    "outlook.office.com": _TEAMS,
    "outlook.office365.com": _TEAMS,
    "chat.googleapis.com": "Google Chat",
    "hooks.zapier.com": "Zapier",
}
"""By the ends of their names."""


def other_service(host: str) -> str | None:
    """Name the service that has this host, if it is one that is known not to be Slack.

    Any other host may be Slack's, or a proxy's before it.
    """
    name = f".{host.lower().rstrip('.')}"
    return next((service for end, service in _SERVICES.items() if name.endswith(f".{end}")), None)
