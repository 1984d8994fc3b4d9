"""What the double of a tool brings to the tests of its recipe."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

from relay.core.delivery import Result
from relay.core.event import LEAD_CAPTURED, VIDEO_WATCHED
from tests.stub_server import Reply, Request

Shown = list[tuple[str, str]]
"""Labels and values as a person sees them, in order."""

Change = Callable[[Request], Request]

NO_JSON: Change = lambda request: replace(request, body=b"{")  # noqa: E731


class Answer(NamedTuple):
    """An answer of the API, and what follows of it: delivered, retry, parked or dead."""

    reply: Reply
    result: Result
    sink: str = ""
    """The recipe's sink that it is for; all of them without a name."""


class Refusal(Exception):
    """The answer to a request that the API does not take."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.status)
        self.reply = reply


class Tool(ABC):
    """A double of one API: it takes what the API's documents call right, and refuses the rest."""

    origins: ClassVar[tuple[str, ...]]
    """Schemes and hosts in the recipe and in `environ`, which the double stands for."""
    environ: ClassVar[Mapping[str, str]]
    """Values of the recipe's references."""
    labels: ClassVar[Mapping[str, tuple[str, ...]]] = {
        LEAD_CAPTURED: ("Name", "E-mail", "Video"),
        VIDEO_WATCHED: ("Name", "E-mail", "Video", "Reached"),
    }
    """Labels of an event's kind, before those of a form's fields."""
    shows_form: ClassVar[bool] = False
    cuts: ClassVar[bool] = True
    """Whether the recipe cuts a long name, and puts it on one line."""
    needs_key: ClassVar[bool] = False
    """Whether an event needs an id or an address that the tool takes for a key."""
    drops_repeats: ClassVar[bool] = False
    throttling: ClassVar[Reply] = Reply(429)
    """The API's answer to requests that come too fast, with its own headers."""
    pause_ms: ClassVar[int] = 0
    """The pause for which it asks."""
    per_minute: ClassVar[float | None] = None
    """Requests that the API takes."""
    answers: ClassVar[Mapping[str, Answer]] = {}
    """Answers that the documents name, beside those of `throttling`."""
    wrong: ClassVar[Mapping[str, tuple[Change, int]]]
    """Changes that make a right request wrong, and the status of each answer."""

    def __init__(self) -> None:
        self.instead: Reply | None = None
        """The answer to everything, whatever is asked."""
        self.is_revoked = False
        self.acted: list[str] = []
        """Mentions, links, markup or formulas that a stranger's text has become."""
        self._kept: dict[object, Shown] = {}

    @property
    def shown(self) -> list[Shown]:
        return list(self._kept.values())

    def answer(self, request: Request) -> Reply:
        if self.instead is not None:
            return self.instead
        try:
            return self.take(request)
        except Refusal as refusal:
            return refusal.reply

    @abstractmethod
    def take(self, request: Request) -> Reply:
        """Answer a request; raises Refusal."""

    def revoke(self) -> None:
        """Take no key that was valid before."""
        self.is_revoked = True

    @classmethod
    def spelled(cls, text: str) -> str:
        """Return a visible line as the recipe has to write it."""
        return text

    def keep(self, shown: Shown, key: object = None) -> None:
        """Show a message, in place of an earlier one with this key."""
        self._kept[object() if key is None else key] = shown

    def clear(self) -> None:
        """Show nothing any more."""
        self._kept.clear()


def need(fact: object, reply: Reply) -> None:
    """Raise Refusal with this reply unless the fact is true."""
    if not fact:
        raise Refusal(reply)


def read(request: Request, otherwise: Reply) -> dict[str, Any]:
    """Return the JSON object in a request; raises Refusal with a reply for any other body."""
    need(request.header.get("content-type", "").startswith("application/json"), otherwise)
    try:
        document = json.loads(request.body)
    except ValueError:
        raise Refusal(otherwise) from None
    need(isinstance(document, dict), otherwise)
    return dict(document)


def is_text(value: object, *, most: int) -> bool:
    """Whether it is a text of 1 to `most` characters."""
    return isinstance(value, str) and 1 <= len(value) <= most


def pairs(lines: list[str]) -> Shown:
    """Read `label: value` of each line; a line without a label is a value alone."""
    return [(label, value) for label, _, value in (line.partition(": ") for line in lines)]


def edited(edit: Callable[[Any], object]) -> Change:
    """Change the JSON body in place."""

    def change(request: Request) -> Request:
        document = json.loads(request.body)
        edit(document)
        return replace(request, body=json.dumps(document).encode())

    return change


def headed(name: str, value: str) -> Change:
    """Set a header."""

    def change(request: Request) -> Request:
        headers = {**request.header, name: value}
        return replace(request, headers=tuple(headers.items()))

    return change


def sent_to(target: str) -> Change:
    return lambda request: replace(request, target=target)


def sent_by(method: str) -> Change:
    return lambda request: replace(request, method=method)
