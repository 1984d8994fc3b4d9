"""HubSpot's batch upsert of contacts."""

import re
from typing import Any, ClassVar

from relay.core.event import LEAD_CAPTURED, VIDEO_WATCHED
from tests.outbound.http.token_endpoint import said
from tests.recipes.tool import NO_JSON, Answer, Shown, Tool, edited, headed, need, read, sent_by
from tests.stub_server import Reply, Request

_TARGET = "/crm/v3/objects/contacts/batch/upsert"
_AUTH = "Bearer pat-eu1-5f2c9a1e-hT0rYc5aLmE8"
_PROPERTIES = frozenset(
    {"email", "firstname", "lastname", "company", "last_video", "last_video_milestone"}
)
_ADDRESS = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")
_INVALID = said({"status": "error", "category": "VALIDATION_ERROR"}, 400)
_PARTLY = {"status": "COMPLETE", "results": [], "numErrors": 1, "errors": [{"category": "X"}]}


class HubSpotContacts(Tool):
    origins = ("https://api.hubapi.com",)
    environ: ClassVar = {"HUBSPOT_AUTH": _AUTH}
    labels: ClassVar = {
        LEAD_CAPTURED: ("Name", "E-mail", "Video"),
        VIDEO_WATCHED: ("E-mail", "Video", "Reached"),
    }
    needs_key = True
    drops_repeats = True
    throttling = said(
        {"status": "error", "errorType": "RATE_LIMIT", "policyName": "TEN_SECONDLY_ROLLING"},
        429,
        **{
            "x-hubspot-ratelimit-max": "100",
            "x-hubspot-ratelimit-remaining": "0",
            "x-hubspot-ratelimit-interval-milliseconds": "10000",
        },
    )
    per_minute = 600
    answers: ClassVar = {
        "the contact failed within the batch": Answer(said(_PARTLY, 207), "retry"),
        "the app may not write contacts": Answer(
            said({"category": "MISSING_SCOPES"}, 403), "parked"
        ),
    }
    wrong: ClassVar = {
        "another token": (headed("authorization", "Bearer pat-x"), 401),
        "PATCH": (sent_by("PATCH"), 405),
        "no JSON": (NO_JSON, 400),
        "101 contacts": (edited(lambda body: body.update(inputs=body["inputs"] * 101)), 400),
        "no property to find it by": (
            edited(lambda body: body["inputs"][0].pop("idProperty")),
            400,
        ),
        "an unknown property": (
            edited(lambda body: body["inputs"][0]["properties"].update(admin="yes")),
            400,
        ),
        "an address that is none": (edited(lambda body: body["inputs"][0].update(id="Ada")), 207),
    }

    def take(self, request: Request) -> Reply:
        is_known = request.header.get("authorization") == _AUTH and not self.is_revoked
        need(is_known, said({"category": "INVALID_AUTHENTICATION"}, 401))
        need(request.target == _TARGET, Reply(404))
        need(request.method == "POST", Reply(405))
        inputs = read(request, _INVALID).get("inputs", [])
        need(1 <= len(inputs) <= 100 and all(map(_is_input, inputs)), _INVALID)
        (contact,) = inputs
        if _ADDRESS.fullmatch(contact["id"]) is None:
            return said(_PARTLY, 207)
        self.keep(_shown(contact["properties"]), key=contact["id"])
        return said({"status": "COMPLETE", "results": [{"id": "1", "new": True}]})


def _is_input(contact: dict[str, Any]) -> bool:
    return (
        contact.get("idProperty") == "email"
        and contact.keys() == {"id", "idProperty", "properties"}
        and contact["properties"].keys() <= _PROPERTIES
        and all(isinstance(value, str) for value in contact["properties"].values())
    )


def _shown(properties: dict[str, str]) -> Shown:
    shown = [("E-mail", properties["email"]), ("Video", properties["last_video"])]
    if "last_video_milestone" in properties:
        return [*shown, ("Reached", properties["last_video_milestone"])]
    names = (properties.get(name, "") for name in ("firstname", "lastname"))
    return [("Name", " ".join(filter(None, names))), *shown]


TOOL = HubSpotContacts
