"""The recipe's Apps Script, published as a web app, and its sheet."""

import re
from typing import ClassVar

from relay.core.event import LEAD_CAPTURED, VIDEO_WATCHED
from tests.recipes.tool import NO_JSON, Answer, Tool, edited, need, read, sent_to
from tests.stub_server import Reply, Request

_ORIGIN = "https://script.google.com"
_TARGET = "/macros/s/AKfycbZq9Wx1hT0rYc5aLmE8uKp7sVnb3Jk2/exec"
_COLUMNS = ("Event", "Created", "Kind", "Name", "E-mail", "Video", "Reached")
_FORMULA = re.compile("[=+]")
_FAILED = Reply(200, b"<html><title>Error</title>", {"content-type": "text/html"})


class AppsScript(Tool):
    origins = (_ORIGIN,)
    environ: ClassVar = {"GOOGLE_SHEETS_URL": _ORIGIN + _TARGET}
    labels: ClassVar = {LEAD_CAPTURED: _COLUMNS, VIDEO_WATCHED: _COLUMNS}
    drops_repeats = True
    answers: ClassVar = {
        "a page, because the script failed": Answer(_FAILED, "parked"),
        "a deployment that is gone": Answer(Reply(404), "parked"),
    }
    wrong: ClassVar = {
        "another deployment": (sent_to("/macros/s/AKfycbX/exec"), 404),
        "what follows the redirect by POST": (sent_to("/macros/echo?user_content_key=1"), 405),
        # The script fails on what follows, and Google answers with a page.
        "no JSON": (NO_JSON, 200),
        "no row": (edited(lambda body: body.pop("row")), 200),
    }

    def __init__(self) -> None:
        super().__init__()
        self._redirects = 0

    def take(self, request: Request) -> Reply:
        is_hop = request.target.startswith("/macros/echo?")
        need(not is_hop, Reply(405 if request.method == "POST" else 200))
        need(request.target == _TARGET and not self.is_revoked, Reply(404))
        row = read(request, _FAILED).get("row")
        need(isinstance(row, list), _FAILED)
        self._append(row or [])
        self._redirects += 1
        echo = (
            f"https://script.googleusercontent.com/macros/echo?user_content_key={self._redirects}"
        )
        return Reply(302, b"", {"location": echo})

    def _append(self, row: list[str]) -> None:
        """Take each cell as if it were typed: an apostrophe before it makes it a text."""
        self.acted += [cell for cell in row if _FORMULA.match(cell)]
        cells = [cell.removeprefix("'") for cell in row]
        self.keep(list(zip(_COLUMNS, cells, strict=True)), key=cells[0])


TOOL = AppsScript
