"""A webhook of a Discord channel."""

import re
from typing import Any, ClassVar
from urllib.parse import parse_qs

from tests.outbound.http.token_endpoint import said
from tests.recipes.tool import NO_JSON, Answer, Shown, Tool, edited, is_text, need, read, sent_to
from tests.stub_server import Reply, Request

_ORIGIN = "https://discord.com"
_PATH = "/api/webhooks/1204418113265471/hT0rYc5aLmE8uKp7sVnb3Jk2Zq9Wx1"
_EMBEDS, _FIELDS, _CONTENT, _NAME, _VALUE, _ALL = 10, 25, 2000, 256, 1024, 6000
_UNKNOWN = said({"message": "Unknown Webhook", "code": 10015}, 404)
_INVALID = said({"message": "Invalid Form Body", "code": 50035}, 400)
_ESCAPED = re.compile(r"\\([!-/:-@\[-`{-~])")
_FIELD: dict[str, str] = {"name": "a", "value": "b"}
_LIVE = re.compile(r"[!-/:-@\[-`{-~]")


class DiscordWebhook(Tool):
    origins = (_ORIGIN,)
    environ: ClassVar = {"DISCORD_URL": f"{_ORIGIN}{_PATH}?wait=true"}
    shows_form = True
    throttling = said(
        {"message": "You are being rate limited.", "retry_after": 3.2, "global": False},
        429,
        **{"retry-after": "4", "x-ratelimit-reset-after": "3.2"},
    )
    pause_ms = 4000
    per_minute = 30
    answers: ClassVar = {
        "a webhook that is gone": Answer(_UNKNOWN, "parked"),
        "an event that Discord does not take": Answer(_INVALID, "dead"),
        "no message, because wait=true is missing": Answer(Reply(204), "parked"),
    }
    wrong: ClassVar = {
        "another token": (sent_to(f"{_PATH}x?wait=true"), 404),
        "no JSON": (NO_JSON, 400),
        "an empty message": (edited(lambda body: (body.pop("content"), body.pop("embeds"))), 400),
        "2001 characters": (edited(lambda body: body.update(content="x" * 2001)), 400),
        "11 embeds": (edited(lambda body: body.update(embeds=body["embeds"] * 11)), 400),
        "a value of 1025 characters": (edited(lambda body: _change(body, value="x" * 1025)), 400),
        "an empty value": (edited(lambda body: _change(body, value="")), 400),
        "26 fields": (edited(lambda body: body["embeds"][0].update(fields=[_FIELD] * 26)), 400),
    }

    def take(self, request: Request) -> Reply:
        path, _, query = request.target.partition("?")
        need(path == _PATH and not self.is_revoked, _UNKNOWN)
        need(request.method == "POST", Reply(405))
        message = read(request, _INVALID)
        need(_is_message(message), _INVALID)
        self._post(message)
        if parse_qs(query).get("wait", ["false"])[0].lower() != "true":
            return Reply(204)
        return said({"id": "1204418113265999", "content": message.get("content", "")})

    def _post(self, message: dict[str, Any]) -> None:
        if message.get("allowed_mentions") != {"parse": []}:
            self.acted.append("mentions are allowed")
        shown: Shown = []
        for embed in message.get("embeds", ()):
            shown += [
                (self._read(field["name"]), self._read(field["value"])) for field in embed["fields"]
            ]
        self.keep(shown)

    def _read(self, text: str) -> str:
        """Read Markdown; unescaped punctuation may be markup, except in our own words."""
        if text != "E-mail":
            self.acted += _LIVE.findall(_ESCAPED.sub("", text))
        return _ESCAPED.sub(r"\1", text)


def _change(message: Any, **members: str) -> None:
    message["embeds"][0]["fields"][0].update(members)


def _is_message(message: dict[str, Any]) -> bool:
    content, embeds = message.get("content", ""), message.get("embeds", [])
    fields = [field for embed in embeds for field in embed["fields"]]
    return (
        bool(content or embeds)
        and len(content) <= _CONTENT
        and len(embeds) <= _EMBEDS
        and all(len(embed["fields"]) <= _FIELDS for embed in embeds)
        and all(is_text(field["name"], most=_NAME) for field in fields)
        and all(is_text(field["value"], most=_VALUE) for field in fields)
        and sum(len(field["name"]) + len(field["value"]) for field in fields) <= _ALL
    )


TOOL = DiscordWebhook
