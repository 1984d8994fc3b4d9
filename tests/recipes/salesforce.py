"""Salesforce's sObjects, upserted by an External ID, and its token endpoint."""

import re
from typing import Any, ClassVar
from urllib.parse import unquote

from tests.outbound.http.token_endpoint import TokenEndpoint, said
from tests.recipes.tool import NO_JSON, Answer, Tool, edited, headed, need, read, sent_by, sent_to
from tests.stub_server import Reply, Request

_CLIENT, _SECRET = "3MVG9b3Jk2Zq9Wx1hT0rYc5aLmE8", "D7C1F0A9E4B8421763F5"
_TARGET = re.compile(r"/services/data/v68\.0/sobjects/(\w+)/(\w+)/([^/?]+)")
_LENGTHS: dict[tuple[str, str], dict[str, int]] = {
    ("Lead", "Relay_Lead__c"): {
        "FirstName": 40,
        "LastName": 80,
        "Company": 255,
        "Email": 80,
        "Description": 32_000,
    },
    ("Video_Milestone__c", "Relay_Event__c"): {
        "Name": 80,
        "Email__c": 80,
        "Video__c": 255,
        "Milestone__c": 255,
    },
}
_REQUIRED = {"LastName", "Company"}


def _error(status: int, code: str) -> Reply:
    return said([{"errorCode": code, "message": "marked"}], status)


class SalesforceObjects(Tool):
    origins = ("https://acme.my.salesforce.com",)
    environ: ClassVar = {"SF_CLIENT_ID": _CLIENT, "SF_CLIENT_SECRET": _SECRET}
    needs_key = True
    drops_repeats = True
    throttling = _error(403, "REQUEST_LIMIT_EXCEEDED")
    answers: ClassVar = {
        "several records with this key": Answer(said(["/sobjects/Lead/1", "/2"], 300), "dead"),
        "a value that does not fit": Answer(_error(400, "STRING_TOO_LONG"), "dead"),
        "a session that is not taken, though it is new": Answer(
            _error(401, "INVALID_SESSION_ID"), "parked"
        ),
    }
    wrong: ClassVar = {
        "another token": (headed("authorization", "Bearer x"), 401),
        "POST": (sent_by("POST"), 405),
        "an object that is not there": (sent_to("/services/data/v68.0/sobjects/X/Y__c/1"), 404),
        "an e-mail address as the key": (
            sent_to("/services/data/v68.0/sobjects/Lead/Relay_Lead__c/ada%40acme.inc"),
            404,
        ),
        "no JSON": (NO_JSON, 400),
        "a lead without a company": (edited(lambda body: body.pop("Company")), 400),
        "the key in the body": (edited(lambda body: body.update(Relay_Lead__c="1")), 400),
        "an id in the body": (edited(lambda body: body.update(Id="1")), 400),
        "a last name of 81 characters": (edited(lambda body: body.update(LastName="x" * 81)), 400),
    }

    def __init__(self) -> None:
        super().__init__()
        self._tokens = TokenEndpoint(client_id=_CLIENT, secret=_SECRET, lasts=None)

    def answer(self, request: Request) -> Reply:
        if request.target == "/services/oauth2/token":
            return self._tokens.answer(request)
        return super().answer(request)

    def revoke(self) -> None:
        super().revoke()
        self._tokens.secret = "another"
        self._tokens.valid.clear()

    def take(self, request: Request) -> Reply:
        need(self._tokens.call(request).status == 200, _error(401, "INVALID_SESSION_ID"))
        target = _TARGET.fullmatch(request.target)
        if target is None or target.group(1, 2) not in _LENGTHS:
            return _error(404, "NOT_FOUND")
        need(request.method == "PATCH", _error(405, "METHOD_NOT_ALLOWED"))
        key = unquote(target[3])
        need("." not in key, _error(404, "NOT_FOUND"))  # it is taken for a format
        record = read(request, _error(400, "JSON_PARSER_ERROR"))
        _check(record, _LENGTHS[target[1], target[2]], is_lead=target[1] == "Lead")
        is_new = key not in self._kept
        self.keep(_shown(record), key=key)
        return said({"id": "00Q1", "success": True, "created": True}, 201) if is_new else Reply(204)


def _check(record: dict[str, Any], lengths: dict[str, int], *, is_lead: bool) -> None:
    need(record.keys() <= lengths.keys(), _error(400, "INVALID_FIELD"))
    for name, value in record.items():
        need(len(value) <= lengths[name], _error(400, "STRING_TOO_LONG"))
    is_whole = all(record.get(name) for name in _REQUIRED)
    need(is_whole or not is_lead, _error(400, "REQUIRED_FIELD_MISSING"))


def _shown(record: dict[str, str]) -> list[tuple[str, str]]:
    if "Name" in record:
        names = ("Name", "Email__c", "Video__c", "Milestone__c")
        values = [record[name] for name in names]
        return list(zip(("Name", "E-mail", "Video", "Reached"), values, strict=True))
    return [
        ("Name", " ".join(filter(None, (record["FirstName"], record["LastName"])))),
        ("E-mail", record["Email"]),
        ("Video", record["Description"].removeprefix("Video: ")),
    ]


TOOL = SalesforceObjects
