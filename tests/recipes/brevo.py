"""Brevo's API for transactional mails."""

from typing import ClassVar
from uuid import UUID

from tests.outbound.http.token_endpoint import said
from tests.recipes.tool import NO_JSON, Answer, Refusal, Tool, edited, headed, need, pairs, read
from tests.stub_server import Reply, Request

_KEY = "xkeysib-5f2c9a1e7be04c1d9a21b3c4d5e6f708-hT0rYc5aLmE8uKp7"
_MEMBERS = {"sender", "to", "subject", "textContent", "headers"}
_INVALID = said({"code": "invalid_parameter"}, 400)


class BrevoMails(Tool):
    origins = ("https://api.brevo.com",)
    environ: ClassVar = {"BREVO_KEY": _KEY}
    shows_form = True
    drops_repeats = True
    throttling = said(
        {"code": "too_many_requests"},
        429,
        **{"x-sib-ratelimit-limit": "100", "x-sib-ratelimit-reset": "17"},
    )
    pause_ms = 17_000
    answers: ClassVar = {
        "a mail that was taken before": Answer(said({"code": "duplicate_parameter"}, 400), "dead"),
        "a 201 without a message": Answer(said({}, 201), "retry"),
    }
    wrong: ClassVar = {
        "another key": (headed("api-key", "xkeysib-x"), 401),
        "no JSON": (NO_JSON, 400),
        "no sender": (edited(lambda body: body.pop("sender")), 400),
        "no recipient": (edited(lambda body: body.update(to=[])), 400),
        "a key that is no UUID": (
            edited(lambda body: body.update(headers={"idempotencyKey": "evt_lead"})),
            400,
        ),
    }

    def __init__(self) -> None:
        super().__init__()
        self._keys: set[UUID] = set()

    def take(self, request: Request) -> Reply:
        is_known = request.header.get("api-key") == _KEY and not self.is_revoked
        need(is_known, said({"code": "unauthorized"}, 401))
        need((request.method, request.target) == ("POST", "/v3/smtp/email"), Reply(404))
        mail = read(request, _INVALID)
        need(mail.keys() == _MEMBERS and mail["to"] and mail["textContent"], _INVALID)
        need("@" in mail["sender"]["email"], _INVALID)
        key = _uuid(mail["headers"]["idempotencyKey"])
        need(key not in self._keys, said({"code": "duplicate_parameter"}, 400))
        self.acted += ["a line in the subject"] * ("\n" in mail["subject"])
        self.keep(pairs(mail["textContent"].rstrip("\n").split("\n")))
        self._keys.add(key)
        return said({"messageId": "<202603020930.1@smtp-relay.mailin.fr>"}, 201)


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise Refusal(_INVALID) from None


TOOL = BrevoMails
