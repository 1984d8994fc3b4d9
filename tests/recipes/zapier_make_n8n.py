"""Webhooks that start a Zap, a scenario of Make, or a workflow of n8n."""

from collections.abc import Mapping
from typing import Any, ClassVar

from tests.outbound.http.token_endpoint import said
from tests.recipes.tool import NO_JSON, Answer, Shown, Tool, headed, need, read, sent_to
from tests.stub_server import Reply, Request

_ZAPIER, _MAKE, _N8N = (
    "https://hooks.zapier.com",
    "https://hook.eu1.make.com",
    "https://n8n.acme.example",
)
_AUTH = "Bearer Zq9Wx1hT0rYc5aLmE8uKp7sVnb3Jk2"
_MB = 1_000_000


class AutomationHooks(Tool):
    origins = (_ZAPIER, _MAKE, _N8N)
    environ: ClassVar = {
        "ZAPIER_URL": _ZAPIER + "/hooks/catch/1234567/abcdefg/",
        "MAKE_URL": _MAKE + "/hT0rYc5aLmE8uKp7sVnb3Jk2",
        "N8N_URL": _N8N + "/webhook/5f2c9a1e-7be0-4c1d",
        "N8N_AUTH": _AUTH,
    }
    cuts = False
    answers: ClassVar = {
        "a hook of Make without a scenario for 5 days": Answer(Reply(410), "parked", "make"),
        "an address that n8n does not take": Answer(Reply(403), "parked", "n8n"),
        "a status of Zapier beside 200": Answer(Reply(422), "retry", "zapier"),
        "a full queue of Make, if it answers 400": Answer(Reply(400), "retry", "make"),
    }
    wrong: ClassVar = {
        "n8n without its header": (headed("authorization", "Bearer x"), 403),
        "the test URL of n8n": (sent_to("/webhook-test/5f2c9a1e-7be0-4c1d"), 404),
        "no JSON": (NO_JSON, 400),
        "more than 5 MB": (lambda _: _large("/hT0rYc5aLmE8uKp7sVnb3Jk2", 5 * _MB), 413),
        "more than 10 MB": (lambda _: _large("/hooks/catch/1234567/abcdefg/", 10 * _MB), 413),
    }

    limits: ClassVar[Mapping[str, tuple[int, Reply]]] = {
        "/hooks/catch/1234567/abcdefg/": (10 * _MB, said({"status": "success", "id": "1"})),
        "/hT0rYc5aLmE8uKp7sVnb3Jk2": (5 * _MB, Reply(200, b"Accepted")),
        "/webhook/5f2c9a1e-7be0-4c1d": (16 * _MB, said({"message": "Workflow was started"})),
    }
    """The largest body of each hook, and its answer."""

    def take(self, request: Request) -> Reply:
        need(request.target in self.limits and not self.is_revoked, Reply(404))
        most, reply = self.limits[request.target]
        is_n8n = request.target.startswith("/webhook/")
        need(not is_n8n or request.header.get("authorization") == _AUTH, Reply(403))
        need(len(request.body) <= most, Reply(413))
        event = read(request, Reply(400))
        need(request.header.get("webhook-id") == event["id"], Reply(400))
        self.keep(_shown(event["data"]))
        return reply


def _large(target: str, size: int) -> Request:
    return Request("POST", target, (("content-type", "application/json"),), b" " * (size + 1))


def _shown(data: dict[str, Any]) -> Shown:
    person = data.get("viewer", data)
    shown = {
        "Name": person["name"],
        "E-mail": person["email"],
        "Video": data["video"]["title"],
        "Reached": data.get("milestone"),
    }
    return [(label, value) for label, value in shown.items() if value is not None]


TOOL = AutomationHooks
