"""A webhook of a Google Chat space."""

import re
from typing import ClassVar

from tests.outbound.http.token_endpoint import said
from tests.recipes.tool import NO_JSON, Answer, Tool, edited, need, pairs, read, sent_to
from tests.stub_server import Reply, Request

_ORIGIN = "https://chat.googleapis.com"
_TARGET = "/v1/spaces/AAAAb3Jk2Zq/messages?key=AIzaSyD9x1hT0rYc5aLmE8&token=uKp7sVnWx1hT0rYc5aLm"
_BYTES = 32_000
_LINK_OR_MENTION = re.compile("<[^>\n]*>")


class ChatSpace(Tool):
    origins = (_ORIGIN,)
    environ: ClassVar = {"GOOGLE_CHAT_URL": _ORIGIN + _TARGET}
    shows_form = True
    throttling = said({"error": {"code": 429, "status": "RESOURCE_EXHAUSTED"}}, 429)
    per_minute = 60
    answers: ClassVar = {"a 200 that is no message": Answer(said({}), "retry")}
    wrong: ClassVar = {
        "another token": (sent_to(_TARGET + "x"), 401),
        "no JSON": (NO_JSON, 400),
        "no text": (edited(lambda body: body.pop("text")), 400),
        "a member that no message has": (edited(lambda body: body.update(content="x")), 400),
        "more than 32,000 bytes": (edited(lambda body: body.update(text="é" * 16_001)), 400),
    }

    def take(self, request: Request) -> Reply:
        need(request.target == _TARGET and not self.is_revoked, _error(401, "UNAUTHENTICATED"))
        need(request.method == "POST", Reply(405))
        invalid = _error(400, "INVALID_ARGUMENT")
        message = read(request, invalid)
        need(message.keys() == {"text"} and message["text"], invalid)
        need(len(message["text"].encode()) <= _BYTES, invalid)
        self.acted += _LINK_OR_MENTION.findall(message["text"])
        _, *lines = message["text"].split("\n")
        self.keep(pairs(lines))
        return said({"name": "spaces/AAAAb3Jk2Zq/messages/x.y", "text": message["text"]})

    @classmethod
    def spelled(cls, text: str) -> str:
        return text.replace("<", "\N{SINGLE LEFT-POINTING ANGLE QUOTATION MARK}")


def _error(status: int, name: str) -> Reply:
    return said({"error": {"code": status, "status": name}}, status)


TOOL = ChatSpace
