"""A workflow of Microsoft Teams that posts the cards that it receives."""

from collections.abc import Mapping
from typing import Any, ClassVar

from tests.outbound.http.token_endpoint import said
from tests.recipes.tool import (
    NO_JSON,
    Answer,
    Shown,
    Tool,
    edited,
    headed,
    is_text,
    need,
    read,
    sent_to,
)
from tests.stub_server import Reply, Request

_ORIGIN = "https://default4f0c.12.environment.api.powerplatform.com:443"
_TARGET = (
    "/powerautomate/automations/direct/workflows/7be0c1d2/triggers/manual/paths/invoke"
    "?api-version=1&sp=%2Ftriggers%2Fmanual%2Frun&sv=1.0&sig=b3Jk-2Zq9_Wx1hT0rYc5aLmE8uKp7sVn"
)
_CARD = "application/vnd.microsoft.card.adaptive"
_CARD_BYTES = 28 * 1024
_DENIED = said({"error": {"code": "DirectApiAuthorizationRequired"}}, 401)
_ELEMENTS = {
    "TextBlock": {"type", "text", "size", "weight", "wrap"},
    "RichTextBlock": {"type", "inlines"},
}
_INLINES = {"TextRun": {"type", "text", "weight"}}
_OWN = ("New lead", "Video watched")


class TeamsWorkflow(Tool):
    origins = (_ORIGIN,)
    environ: ClassVar = {"TEAMS_URL": _ORIGIN + _TARGET}
    shows_form = True
    per_minute = 60
    answers: ClassVar = {"the flow is gone": Answer(Reply(404), "parked")}
    wrong: ClassVar = {
        "a signature that was rewritten": (sent_to(_TARGET.replace("&sig", "&amp;sig")), 401),
        "an authorization header beside the signature": (headed("authorization", "Bearer x"), 401),
        "no JSON": (NO_JSON, 400),
        "a card over 28 KB": (
            edited(lambda body: _body(body)[0].update(text="x" * _CARD_BYTES)),
            413,
        ),
        # What follows was accepted: the run fails afterwards, and nothing is posted.
        "no attachments": (edited(lambda body: body.pop("attachments")), 202),
        "a MessageCard": (edited(lambda body: body.update({"@type": "MessageCard"})), 202),
        "another type of content": (
            edited(lambda body: body["attachments"][0].update(contentType="text/plain")),
            202,
        ),
        "an element that no card has": (edited(lambda body: _body(body)[0].update(type="X")), 202),
    }

    def take(self, request: Request) -> Reply:
        need(request.method == "POST", Reply(405))
        need(request.target == _TARGET and not self.is_revoked, _DENIED)
        need("authorization" not in request.header, _DENIED)
        need(len(request.body) <= _CARD_BYTES, Reply(413))
        message = read(request, Reply(400))
        if _is_message(message):
            self._post(message["attachments"][0]["content"])
        return Reply(202)

    def _post(self, card: dict[str, Any]) -> None:
        shown: Shown = []
        if "msteams" in card:
            self.acted.append("mentions")
        for element in card["body"]:
            if element["type"] == "RichTextBlock":
                label, value = (run["text"] for run in element["inlines"])
                shown.append((label.removesuffix(": "), value))
            elif element["text"] not in _OWN:  # Markdown counts in it
                self.acted.append(element["text"])
        self.keep(shown)


def _body(message: Any) -> Any:
    return message["attachments"][0]["content"]["body"]


def _is_message(message: dict[str, Any]) -> bool:
    if message.get("type") != "message" or "@type" in message or not message.get("attachments"):
        return False
    return all(
        attachment["contentType"] == _CARD and _is_card(attachment["content"])
        for attachment in message["attachments"]
    )


def _is_card(card: dict[str, Any]) -> bool:
    is_headed = (card["type"], card["version"]) == ("AdaptiveCard", "1.4")
    return is_headed and all(_is_one_of(_ELEMENTS, element) for element in card["body"])


def _is_one_of(members: Mapping[str, set[str]], element: dict[str, Any]) -> bool:
    if not element.keys() <= members.get(element["type"], set()):
        return False
    inlines = element.get("inlines")
    if element["type"] == "RichTextBlock":
        return bool(inlines) and all(_is_one_of(_INLINES, inline) for inline in inlines or ())
    return is_text(element.get("text"), most=_CARD_BYTES)


TOOL = TeamsWorkflow
