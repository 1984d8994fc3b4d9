"""Meanings of Pub/Sub's responses; its errors are a google.rpc.Status as JSON."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from relay.core.errors import Meaning, Misconfigured, Refused, Temporary
from relay.outbound.http import responses
from relay.outbound.http.responses import HttpResponse, document

MEANINGS: Mapping[str, Meaning] = {
    "UNAUTHENTICATED": (Misconfigured, "Google does not accept the credentials"),
    "PERMISSION_DENIED": (Misconfigured, "the credentials do not permit this on the topic"),
    "NOT_FOUND": (Misconfigured, "the topic or its project does not exist"),
    "FAILED_PRECONDITION": (
        Misconfigured,
        "the project's billing, the topic's key or its allowed regions forbid it",
    ),
    "UNIMPLEMENTED": (Misconfigured, "what is at this address does not know the method"),
    "INVALID_ARGUMENT": (Refused, "Pub/Sub does not take the message"),
    "OUT_OF_RANGE": (Refused, "Pub/Sub does not take the message"),
    "RESOURCE_EXHAUSTED": (Temporary, "a quota of the project is used up"),
    "ABORTED": (Temporary, "Pub/Sub broke it off"),
    "CANCELLED": (Temporary, "Pub/Sub broke it off"),
    "DEADLINE_EXCEEDED": (Temporary, "Pub/Sub did not manage it in time"),
    "INTERNAL": (Temporary, "Pub/Sub has a fault"),
    "UNAVAILABLE": (Temporary, "Pub/Sub cannot serve now"),
    "UNKNOWN": (Temporary, "Pub/Sub has a fault"),
}
"""Meanings by google.rpc.Code; a response without one is classified by its HTTP status."""

SILENT = "Pub/Sub did not say what became of the message"

_REASON = re.compile("[A-Z][A-Z0-9_]{1,62}")


def raise_for_status(response: HttpResponse, *, now_ms: int) -> None:
    """Return for a 2xx; raises Temporary, Refused or Misconfigured.

    Google's own words, or a proxy's, are left out: they may quote the message or the token.
    """
    response = replace(response, excerpt="")
    error = document(response).get("error")
    code = error.get("status") if isinstance(error, dict) else None
    meaning = MEANINGS.get(code) if isinstance(code, str) else None
    if 200 <= response.status < 300 or meaning is None or not isinstance(error, dict):
        responses.raise_for_status(response, now_ms=now_ms)
        return
    said = ", ".join([f"{response.status} {code}", *_reasons(error)])
    failure = responses.error(meaning, response, said=said, now_ms=now_ms)
    failure.about_event = code != "UNAUTHENTICATED"
    raise failure


def ids(response: HttpResponse, count: int) -> list[str | None]:
    """Name the ids of the messages of one request, in their order; None for one without.

    Of an answer with too few or too many of them, or with one twice, none is believed.
    """
    named = document(response).get("messageIds")
    if not isinstance(named, list) or len(named) != count:
        return [None] * count
    read = [each if isinstance(each, str) and each else None for each in named]
    known = [each for each in read if each is not None]
    return read if len(set(known)) == len(known) else [None] * count


def _reasons(error: Mapping[str, Any]) -> list[str]:
    """Name the causes of google.rpc.ErrorInfo, such as SERVICE_DISABLED."""
    details = error.get("details")
    infos = [each for each in details if isinstance(each, dict)] if details else []
    named = [each.get("reason") for each in infos]
    return [each for each in named if isinstance(each, str) and _REASON.fullmatch(each)][:1]
