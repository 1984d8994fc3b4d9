"""Meanings of Slack's responses, by status and body together (slack.md, sections 1 and 2)."""

import re
from collections.abc import Mapping

from relay.core.errors import Meaning, Misconfigured, Refused, Temporary
from relay.outbound.http import responses
from relay.outbound.http.responses import HttpResponse, document

_WORD = re.compile(r"[a-z_]+(?![a-z_0-9])")

_NEW_HOOK = "create a new webhook in Slack and put its URL into the config"

MEANINGS: Mapping[str, Meaning] = {
    "invalid_payload": (Refused, "it cannot read the message"),
    "invalid_blocks": (Refused, "it does not accept the message's blocks"),
    "invalid_blocks_format": (Refused, "it does not accept the message's blocks"),
    "msg_blocks_too_long": (Refused, "the message's blocks are too long together"),
    "msg_too_long": (Refused, "the message is too long"),
    "too_many_attachments": (Refused, "the message has too many attachments"),
    "no_text": (Refused, "the message has no text"),
    "missing_text_or_fallback_or_attachments": (Refused, "the message has no text"),
    "user_not_found": (Misconfigured, f"the hook's person does not exist: {_NEW_HOOK}"),
    "channel_not_found": (Misconfigured, f"the hook's channel does not exist: {_NEW_HOOK}"),
    "channel_is_archived": (
        Misconfigured,
        f"the hook's channel is archived: bring it back, or {_NEW_HOOK}",
    ),
    "action_prohibited": (
        Misconfigured,
        "the workspace forbids this hook to post here: ask a workspace admin",
    ),
    "posting_to_general_channel_denied": (
        Misconfigured,
        f"the hook may not post to the general channel: ask a workspace admin, or {_NEW_HOOK}",
    ),
    "no_service": (Misconfigured, f"the hook is disabled or removed: {_NEW_HOOK}"),
    "no_service_id": (Misconfigured, f"the URL is not a whole hook URL: {_NEW_HOOK}"),
    "no_active_hooks": (Misconfigured, f"the hook is disabled: {_NEW_HOOK}"),
    "no_team": (Misconfigured, f"the hook's workspace does not exist: {_NEW_HOOK}"),
    "team_disabled": (
        Misconfigured,
        f"the hook's workspace is closed: {_NEW_HOOK} in another workspace",
    ),
    "invalid_token": (Misconfigured, f"the URL's last part is not valid: {_NEW_HOOK}"),
    "rate_limited": (Temporary, "the hook is used too fast"),
    "rollup_error": (Temporary, "it has a fault of its own"),
}
"""Slack's answers, as words in the body (slack.md, section 2)."""

_ACCEPTED = 202
"""Slack never answers it."""

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
"""Other services whose hooks end up in `slack` sinks, by the ends of their hosts.

recipes.md, section 2.
"""


def other_service(host: str) -> str | None:
    """Name the service that has this host, if it is one that is known not to be Slack.

    Any other host may be Slack's, or a proxy's before it.
    """
    name = f".{host.lower().rstrip('.')}"
    return next((service for end, service in _SERVICES.items() if name.endswith(f".{end}")), None)


def raise_for_status(response: HttpResponse, *, service: str | None, now_ms: int) -> None:
    """Return where Slack has taken the message; raises Temporary, Refused or Misconfigured.

    `service` names the one that has the URL, if that is known not to be Slack.
    """
    if response.status == 200 and _is_ok(response):
        return
    # Only known words are repeated: the rest of a response can hold anything.
    word = _word(response)
    meaning, said = MEANINGS.get(word), f"Slack says {response.status} {word}"
    if meaning is None or (is_temporary(response) and meaning[0] is not Temporary):
        responses.raise_for_status(response, now_ms=now_ms)
        meaning, said = _not_slack(response.status, service), str(response.status)
    raise responses.error(meaning, response, said=said, now_ms=now_ms)


def _not_slack(status: int | None, service: str | None) -> Meaning:
    """Explain a success that is none of Slack's."""
    if service is not None:
        what = f"the URL is an address of {service}"
    elif status == _ACCEPTED:
        what = "something else answers at this URL, as Power Automate does to any post"
    else:
        what = "something else answers at this URL"
    return (Misconfigured, f"neither ok nor any answer of Slack's: {what}")


def is_temporary(response: HttpResponse) -> bool:
    """Whether the status alone asks for another attempt, whatever the body says."""
    known = responses.MEANINGS.get(response.status)
    return known is not None and known[0] is Temporary


def _is_ok(response: HttpResponse) -> bool:
    return response.excerpt.strip() == "ok" or document(response).get("ok") is True


def _word(response: HttpResponse) -> str:
    error = document(response).get("error", response.excerpt)
    match = _WORD.match(error.strip()) if isinstance(error, str) else None
    return match[0] if match else ""
