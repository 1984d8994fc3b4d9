"""What the demo prints: a line for each request, and one for its delivery."""

import asyncio
import shutil
from datetime import datetime
from typing import Literal

import click
import msgspec
import orjson

from relay.cli.demo.environment import Environment
from relay.sandbox.model import Attempt
from relay.video_service.sender import SendOutcome

Repeat = Literal["the same again", "forged"]
AGAIN: Repeat = "the same again"
FORGED: Repeat = "forged"

OTHERS_SHOWN = 5
"""Lines per second for events of other senders; further ones are only counted."""

WIDTH, WIDTH_MAX = 80, 120
_FIXED = 62
"""Columns of a line without the response."""

_REMARKS = {
    AGAIN: "its id is known, so no sink gets it twice",
    FORGED: "signed with another secret: nothing is parsed or stored",
}

_OPENING = """\
Open {admin}/ and log in with {token}

A real relay, and beside it a stand-in of the video service that sends to it.

  webhooks  {url}
  service   {service}
  metrics   {admin}/metrics
  health    {admin}/readyz
  config    {config}
"""
_NEXT = """
Now {viewers} viewers come. And you, from another terminal; what arrives is shown here:

  {relay} send lead.captured --url {url} \\
    --secret file:{secret}
  {relay} send all --count 500 --url {url} \\
    --secret file:{secret}
  {relay} check-config --config {config}
  {relay} store check --config {config}
  curl -s {admin}/metrics | grep ^relay_events_total
  curl -s '{service}/v1/stats?format=csv' \\
    -H 'Authorization: Bearer {key}'

Ctrl-C ends the demo and removes its folder.
"""


class Answered(msgspec.Struct, frozen=True):
    """The relay's answer to a request."""

    name: str
    """The kind of the event, or why it was sent again."""
    event_id: str
    outcome: str
    """The relay's word for it, or why there was no answer."""
    status: int | None
    ms: float
    since_ms: int | None = None
    """When the attempt began; None where no sink gets the event."""

    @classmethod
    def by_service(cls, attempt: Attempt) -> "Answered":
        return cls(
            name=attempt.event,
            event_id=attempt.event_id,
            outcome=_outcome(attempt.response),
            status=attempt.status,
            ms=float(attempt.duration_ms or 0),
            since_ms=attempt.started_ms if attempt.state == "delivered" else None,
        )

    @classmethod
    def by_hand(cls, name: str, event_id: str, attempted: SendOutcome) -> "Answered":
        return cls(
            name=name,
            event_id=event_id,
            outcome=attempted.outcome or attempted.reason,
            status=attempted.status,
            ms=attempted.seconds * 1000,
        )


class Screen:
    """Prints comments to stderr, so that stdout has the sink's lines alone."""

    def __init__(self, environment: Environment, *, command: str, viewers: int) -> None:
        self._environment = environment
        self._command = command
        self._viewers = viewers
        self._others = 0
        columns = shutil.get_terminal_size((WIDTH, 24)).columns
        self._answer_width = min(max(columns, WIDTH), WIDTH_MAX) - _FIXED

    def open(self) -> None:
        _print(self._filled(_OPENING))
        _print(
            f"{'TIME':8}  {'EVENT':14}  {'ID':20}  {'ANSWER':{self._answer_width}}  {'AFTER':>10}"
        )

    def suggest(self) -> None:
        """Print what the reader may try now."""
        _print(self._filled(_NEXT))

    def request(self, answered: Answered) -> None:
        answer = f"{answered.status or ''} {answered.outcome}".strip()
        shown = f"{answer[: self._answer_width]:{self._answer_width}}"
        text = click.style(shown, fg=_colour(answered))
        after = f"{answered.ms:7.1f} ms"
        _print(f"{_now()}  {answered.name:14}  {answered.event_id:20}  {text}  {after}")
        if answered.name in _REMARKS:
            _print(_dim(f"{'':10}{_REMARKS[answered.name]}"))

    def delivery(self, line: str, *, ms: int) -> None:
        width = 22 + self._answer_width
        text = line if len(line) <= width else line[: width - 1] + "…"
        _print(_dim(f"{'':10}{'stdout sink':14}  {text:{width}}  {ms:7.1f} ms"))

    def late(self) -> None:
        _print(_dim(f"{'':10}{'stdout sink':14}  not delivered yet"))

    def other(self, event: dict[str, str], *, ms: int) -> None:
        """Print the first few of each second, then only their number."""
        if self._others == 0:
            asyncio.get_running_loop().call_later(1, self._rest)
        self._others += 1
        if self._others <= OTHERS_SHOWN:
            answer = f"{'yours: delivered':{self._answer_width}}"
            after = f"{ms:5} ms"
            _print(
                f"{_now()}  {event['event'][:14]:14}  {event['id'][:20]:20}  {answer}  {after:>10}"
            )

    def close(self, *, delivered: int, duplicates: int, forged: int) -> None:
        _print(
            f"\nStopped and drained. Delivered: {delivered}, "
            f"duplicates: {duplicates}, forged: {forged}."
        )

    def _rest(self) -> None:
        if self._others > OTHERS_SHOWN:
            _print(f"{'':10}and {self._others - OTHERS_SHOWN} more of yours")
        self._others = 0

    def _filled(self, text: str) -> str:
        environment = self._environment
        return text.format(
            relay=self._command,
            viewers=self._viewers,
            url=environment.webhook_url,
            admin=environment.admin_url,
            service=environment.service_url,
            key=environment.key.reveal(),
            token=environment.token.reveal(),
            config=environment.config,
            secret=environment.secret_file,
        )


def _outcome(response: str) -> str:
    """Return the relay's word in a response, or the reason why there was none."""
    try:
        document = orjson.loads(response)
    except orjson.JSONDecodeError:
        return response
    outcome = document.get("status") if isinstance(document, dict) else None
    return outcome if isinstance(outcome, str) else ""


def _print(text: str) -> None:
    click.echo(text, err=True)


def _now() -> str:
    return datetime.now().astimezone().strftime("%H:%M:%S")


def _dim(text: str) -> str:
    return click.style(text, dim=True)


def _colour(answered: Answered) -> str:
    if answered.status is not None and 200 <= answered.status < 300:
        return "green" if answered.outcome == "accepted" else "yellow"
    return "red"
