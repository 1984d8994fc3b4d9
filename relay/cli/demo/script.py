"""The demo's requests, and two lines of comment on each."""

import asyncio
import itertools
import shutil
import sys
from collections import Counter
from datetime import datetime

import click
import orjson

from relay.cli.demo.environment import Environment
from relay.cli.send.load import Letter, sample
from relay.core.clock import SystemClock
from relay.core.event import LEAD_CAPTURED, VIDEO_WATCHED, WEBHOOK_TEST
from relay.video_service.sender import Attempted, Sender

PACE_S = 1.5
LATER_PACE_S = 10.0
"""After the first round, so that the suggested commands stay on the screen."""

DELIVERY_DEADLINE_S = 5.0
OTHERS_SHOWN = 5
"""Lines per second for events of other senders; further ones are only counted."""

WIDTH, WIDTH_MAX = 80, 120
_FIXED = 62
"""Columns of a line without the response."""

NEW, AGAIN, FORGED = "", "the same again", "forged"
ROUND = (
    (NEW, LEAD_CAPTURED),
    (AGAIN, LEAD_CAPTURED),
    (NEW, VIDEO_WATCHED),
    (FORGED, LEAD_CAPTURED),
    (NEW, "video.created"),
    (NEW, "video.ready"),
    (NEW, "video.failed"),
    (NEW, "video.deleted"),
    (NEW, WEBHOOK_TEST),
)
_REMARKS = {
    AGAIN: "its id is known, so no sink gets it twice",
    FORGED: "signed with another secret: nothing is parsed or stored",
}

_OPENING = """\
Open {admin}/ and log in with {token}

A real relay, and beside it a sender that signs as the video service does.

  webhooks  {url}
  metrics   {admin}/metrics
  health    {admin}/readyz
  config    {config}
"""
_NEXT = """
Now you, from another terminal; what arrives is shown here:

  {relay} send lead.captured --url {url} \\
    --secret file:{secret}
  {relay} send all --count 500 --url {url} \\
    --secret file:{secret}
  {relay} check-config --config {config}
  {relay} store check --config {config}
  curl -s {admin}/metrics | grep ^relay_events_total

Meanwhile an event every {pace:g} s. Ctrl-C ends the demo and removes its folder.
"""


class Script:
    """Sends events, and reads the deliveries from the sink's output."""

    def __init__(
        self, environment: Environment, *, command: str, events: int | None, every_s: float | None
    ) -> None:
        self._environment = environment
        self._command = command
        self._events = events
        self._every_s = every_s
        self._clock = SystemClock()
        self._tally: Counter[str] = Counter()
        self._expected: dict[str, asyncio.Future[tuple[str, float]]] = {}
        self._last = Letter("", "", b"")
        self._others = 0
        self._urls = {"url": "", "admin": ""}
        columns = shutil.get_terminal_size((WIDTH, 24)).columns
        self._answer_width = min(max(columns, WIDTH), WIDTH_MAX) - _FIXED

    def open(self, url: str, admin: str) -> None:
        self._urls = {"url": url, "admin": admin}
        token, config = self._environment.token.reveal(), self._environment.config
        _print(_OPENING.format(**self._urls, token=token, config=config))
        _print(
            f"{'TIME':8}  {'EVENT':14}  {'ID':20}  {'ANSWER':{self._answer_width}}  {'AFTER':>10}"
        )

    def close(self) -> None:
        tally = self._tally
        _print(
            f"\nStopped and drained. Delivered: {tally['delivered']}, "
            f"duplicates: {tally['duplicate']}, forged: {tally['unauthorized']}."
        )

    async def perform(self, sender: Sender, forger: Sender, stop: asyncio.Event) -> None:
        """Send one event after another, and set `stop` after the last."""
        for index, (act, kind) in enumerate(itertools.islice(itertools.cycle(ROUND), self._events)):
            if index:
                await asyncio.sleep(self._pace_s(index))
            await self._send(forger if act == FORGED else sender, act, kind)
            if index == len(ROUND) - 1 and index + 1 != self._events:
                self._print_next_steps()
        stop.set()

    async def watch(self, lines: asyncio.StreamReader) -> None:
        """Read the sink's output to its end."""
        while line := await lines.readline():
            at_s = self._clock.monotonic()
            if sys.stdout is None or not sys.stdout.isatty():
                click.echo(line, nl=False)
            event = orjson.loads(line)
            self._tally["delivered"] += 1
            expected = self._expected.pop(event["id"], None)
            if expected is None:
                self._print_other(event)
            elif not expected.done():  # done at the end, when it was cancelled
                expected.set_result((line.decode().rstrip(), at_s))

    async def _send(self, sender: Sender, act: str, kind: str) -> None:
        if act != AGAIN:
            self._last = sample(kind)
        event_id = self._last.id
        started_s = self._clock.monotonic()
        arrival = asyncio.get_running_loop().create_future()
        if act == NEW:
            self._expected[event_id] = arrival
        attempted = await sender.attempt(self._last.body)
        self._tally[attempted.outcome] += 1
        self._print_request(act or kind, event_id, attempted)
        if act != NEW:
            _print(_dim(f"{'':10}{_REMARKS[act]}"))
        elif attempted.acknowledged:
            await self._print_delivery(arrival, started_s)

    def _pace_s(self, index: int) -> float:
        if self._every_s is not None:
            return self._every_s
        return PACE_S if index < len(ROUND) else LATER_PACE_S

    def _print_request(self, name: str, event_id: str, attempted: Attempted) -> None:
        answer = f"{attempted.status or ''} {attempted.outcome or attempted.reason}".strip()
        answer = click.style(f"{answer:{self._answer_width}}", fg=_colour(attempted))
        after = f"{attempted.seconds * 1000:7.1f} ms"
        _print(f"{_now()}  {name:14}  {event_id:20}  {answer}  {after}")

    async def _print_delivery(
        self, arrival: "asyncio.Future[tuple[str, float]]", started_s: float
    ) -> None:
        try:
            async with asyncio.timeout(DELIVERY_DEADLINE_S):
                line, at_s = await arrival
        except TimeoutError:
            _print(_dim(f"{'':10}{'stdout sink':14}  not delivered yet"))
            return
        width = 22 + self._answer_width
        text = line if len(line) <= width else line[: width - 1] + "…"
        after = f"{(at_s - started_s) * 1000:7.1f} ms"
        _print(_dim(f"{'':10}{'stdout sink':14}  {text:{width}}  {after}"))

    def _print_other(self, event: dict[str, str]) -> None:
        """Print the first few of each second, then only their number."""
        if self._others == 0:
            asyncio.get_running_loop().call_later(1, self._print_rest)
        self._others += 1
        if self._others <= OTHERS_SHOWN:
            after = f"{self._clock.now_ms() - int(event['receivedAt']):5} ms"
            answer = f"{'yours: delivered':{self._answer_width}}"
            _print(
                f"{_now()}  {event['event'][:14]:14}  {event['id'][:20]:20}  {answer}  {after:>10}"
            )

    def _print_rest(self) -> None:
        if self._others > OTHERS_SHOWN:
            _print(f"{'':10}and {self._others - OTHERS_SHOWN} more of yours")
        self._others = 0

    def _print_next_steps(self) -> None:
        _print(
            _NEXT.format(
                **self._urls,
                relay=self._command,
                secret=self._environment.secret_file,
                config=self._environment.config,
                pace=self._pace_s(len(ROUND)),
            )
        )


def _print(text: str) -> None:
    click.echo(text, err=True)


def _now() -> str:
    return datetime.now().astimezone().strftime("%H:%M:%S")


def _dim(text: str) -> str:
    return click.style(text, dim=True)


def _colour(attempted: Attempted) -> str:
    if attempted.acknowledged:
        return "green" if attempted.outcome == "accepted" else "yellow"
    return "red"
