"""An incoming webhook of a Mattermost channel."""

import re
from typing import ClassVar

from markdown_it import MarkdownIt

from tests.outbound.http.token_endpoint import said
from tests.recipes.tool import NO_JSON, Answer, Tool, edited, need, pairs, read, sent_to
from tests.stub_server import Reply, Request

_ORIGIN = "https://chat.acme.example"
_TARGET = "/hooks/xo8b3jk2zq9wx1ht0ryc5almeu"
_INVALID = said({"id": "web.incoming_webhook.invalid.app_error", "status_code": 400}, 400)
_NO_TEXT = said({"id": "web.incoming_webhook.text.app_error", "status_code": 400}, 400)
_PARSE = said({"id": "web.incoming_webhook.parse.app_error", "status_code": 400}, 400)
_MENTION = re.compile(r"(?<!\w)@\w+")
_MARKDOWN = MarkdownIt("commonmark")


class MattermostHook(Tool):
    origins = (_ORIGIN,)
    environ: ClassVar = {"MATTERMOST_URL": _ORIGIN + _TARGET}
    shows_form = True
    answers: ClassVar = {
        "webhooks are switched off": Answer(Reply(501), "parked"),
        "the channel is locked": Answer(Reply(403), "parked"),
        "the channel is gone": Answer(Reply(404), "parked"),
    }
    wrong: ClassVar = {
        "another key": (sent_to(_TARGET + "x"), 400),
        "no JSON": (NO_JSON, 400),
        "an empty text": (edited(lambda body: body.update(text="")), 400),
    }

    def take(self, request: Request) -> Reply:
        need(request.target == _TARGET and not self.is_revoked, _INVALID)
        message = read(request, _PARSE)
        need(message.get("text"), _NO_TEXT)
        self._post(message["text"])
        return Reply(200, b"ok")

    def _post(self, text: str) -> None:
        lines = [""]
        for block in _MARKDOWN.parse(text):
            for token in block.children or ():
                match token.type:
                    case "softbreak":
                        lines.append("")
                    case "code_inline":
                        lines[-1] += token.content
                    case "text":
                        # Mattermost looks for mentions here, behind a backslash too.
                        self.acted += _MENTION.findall(token.content)
                        lines[-1] += token.content
                    case markup:
                        self.acted.append(markup)
        self.keep(pairs(lines[1:]))

    @classmethod
    def spelled(cls, text: str) -> str:
        return text.replace("`", "'")


TOOL = MattermostHook
