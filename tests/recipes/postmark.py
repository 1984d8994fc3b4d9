"""Postmark's API for single mails."""

from typing import ClassVar

from tests.outbound.http.token_endpoint import said
from tests.recipes.tool import NO_JSON, Answer, Tool, edited, headed, need, pairs, read, sent_to
from tests.stub_server import Reply, Request

_TOKEN = "5f2c9a1e-7be0-4c1d-9a21-b3c4d5e6f708"
_REQUIRED = {"From", "To", "TextBody"}
_MEMBERS = _REQUIRED | {
    *("Attachments", "Bcc", "Cc", "Headers", "HtmlBody", "MessageStream", "Metadata"),
    *("ReplyTo", "Subject", "Tag", "TrackLinks", "TrackOpens"),
}


def _error(status: int, code: int) -> Reply:
    return said({"ErrorCode": code, "Message": "marked"}, status)


class PostmarkServer(Tool):
    origins = ("https://api.postmarkapp.com",)
    environ: ClassVar = {"POSTMARK_TOKEN": _TOKEN}
    shows_form = True
    throttling = _error(429, 0)
    answers: ClassVar = {
        "a 200 that is none": Answer(_error(200, 300), "retry"),
        "a sender without a signature": Answer(_error(422, 400), "parked"),
        "a sender that is not confirmed": Answer(_error(422, 401), "parked"),
        "an account that may not send": Answer(_error(422, 412), "parked"),
        "a recipient that is inactive": Answer(_error(422, 406), "parked"),
    }
    wrong: ClassVar = {
        "another token": (headed("x-postmark-server-token", "x"), 401),
        "another path": (sent_to("/emails"), 404),
        "no JSON": (NO_JSON, 422),
        "no sender": (edited(lambda body: body.pop("From")), 422),
        "a recipient that is none": (edited(lambda body: body.update(To="sales")), 422),
        "a member that no mail has": (edited(lambda body: body.update(Admin="yes")), 422),
        "no body": (edited(lambda body: body.pop("TextBody")), 422),
    }

    def take(self, request: Request) -> Reply:
        token = request.header.get("x-postmark-server-token")
        need(token == _TOKEN and not self.is_revoked, _error(401, 10))
        need((request.method, request.target) == ("POST", "/email"), _error(404, 0))
        mail = read(request, _error(422, 402))
        need(all(mail.get(name) for name in _REQUIRED), _error(422, 300))
        need(mail.keys() <= _MEMBERS, _error(422, 402))
        need(all("@" in mail[name] for name in ("From", "To")), _error(422, 300))
        self.acted += ["a line in the subject"] * ("\n" in mail.get("Subject", ""))
        self.keep(pairs(mail["TextBody"].rstrip("\n").split("\n")))
        return said({"ErrorCode": 0, "Message": "OK", "MessageID": "b7bc2f4a"})


TOOL = PostmarkServer
