"""Airtable's upsert of records."""

from typing import ClassVar

from relay.core.event import LEAD_CAPTURED, VIDEO_WATCHED
from tests.outbound.http.token_endpoint import said
from tests.recipes.tool import NO_JSON, Answer, Tool, edited, headed, need, read, sent_by, sent_to
from tests.stub_server import Reply, Request

_TARGET = "/v0/appA1b2C3d4E5f6G7/Leads"
_AUTH = "Bearer patZq9Wx1hT0rYc5a.5f2c9a1e7be0c1d2"
_COLUMNS = ("Event", "Kind", "Name", "E-mail", "Video", "Reached")
_RECORDS = 10
_INVALID = said({"error": {"type": "INVALID_REQUEST_UNKNOWN"}}, 422)


class AirtableBase(Tool):
    origins = ("https://api.airtable.com",)
    environ: ClassVar = {"AIRTABLE_AUTH": _AUTH}
    labels: ClassVar = {LEAD_CAPTURED: _COLUMNS, VIDEO_WATCHED: _COLUMNS}
    drops_repeats = True
    throttling = said({"errors": [{"error": "RATE_LIMIT_REACHED"}]}, 429)
    pause_ms = 30_000
    per_minute = 300
    answers: ClassVar = {
        "a token without the scope or the base": Answer(
            said({"error": {"type": "INVALID_PERMISSIONS"}}, 403),
            "parked",
        ),
        "a 200 without the record": Answer(said({"records": []}), "retry"),
    }
    wrong: ClassVar = {
        "another token": (headed("authorization", "Bearer patx"), 401),
        "another base": (sent_to("/v0/appX/Leads"), 403),
        "PUT without a record's id": (sent_by("PUT"), 422),
        "no JSON": (NO_JSON, 422),
        "11 records": (edited(lambda body: body.update(records=body["records"] * 11)), 422),
        "a column that is not there": (
            edited(lambda body: body["records"][0]["fields"].update(Admin="yes")),
            422,
        ),
        "nothing to merge on": (edited(lambda body: body.pop("performUpsert")), 422),
    }

    def take(self, request: Request) -> Reply:
        is_known = request.header.get("authorization") == _AUTH and not self.is_revoked
        need(is_known, said({"error": {"type": "AUTHENTICATION_REQUIRED"}}, 401))
        need(request.target == _TARGET, said({"error": {"type": "INVALID_PERMISSIONS"}}, 403))
        need(request.method == "PATCH", _INVALID)
        document = read(request, _INVALID)
        need(document.get("performUpsert") == {"fieldsToMergeOn": ["Event"]}, _INVALID)
        records = document.get("records", [])
        need(1 <= len(records) <= _RECORDS, _INVALID)
        for record in records:
            unknown = said({"error": {"type": "UNKNOWN_FIELD_NAME"}}, 422)
            need(record["fields"].keys() <= set(_COLUMNS), unknown)
        return self._upsert([record["fields"] for record in records])

    def _upsert(self, rows: list[dict[str, str]]) -> Reply:
        new = [row["Event"] for row in rows if row["Event"] not in self._kept]
        for row in rows:
            self.keep([(column, row[column]) for column in _COLUMNS], key=row["Event"])
        created = {"createdTime": "2026-03-02T09:30:00.000Z"}
        answer = [{"id": f"rec{row['Event']}", "fields": row, **created} for row in rows]
        old = [row["Event"] for row in rows if row["Event"] not in new]
        return said({"records": answer, "createdRecords": new, "updatedRecords": old})


TOOL = AirtableBase
