"""What a relay without events needs next: URLs of its sources, commands that send an event."""

import shlex
from collections.abc import Sequence

import msgspec

from relay.admin.page.text.formats import iso
from relay.admin.page.visit import PageVisit
from relay.core import signature
from relay.core.authentication import SourceSettings
from relay.core.event import WEBHOOK_TEST
from relay.core.sample_events import event


class FirstStep(msgspec.Struct, frozen=True, kw_only=True):
    """A source that waits for its first event."""

    source: str
    url: str
    """On this machine; a reverse proxy publishes it under another name."""
    send: str
    """A command of the relay that sends a sample."""
    signed: str | None
    """A request with a signature; None for viewers, who must not add events."""
    tolerance_ms: int
    """How long the signature is taken."""


def first_steps(visit: PageVisit) -> Sequence[FirstStep]:
    """Describe each source of the config."""
    config = visit.admin.config()
    steps = []
    for source in config.sources:
        url = config.server.listen.url() + source.path
        words = ["relay", "send", "lead.captured", "--config", str(config.file)]
        steps.append(
            FirstStep(
                source=source.name,
                url=url,
                send=shlex.join([*words, "--source", source.name]),
                signed=_signed(source, url, visit.now_ms) if visit.may_change else None,
                tolerance_ms=source.tolerance,
            )
        )
    return steps


def _signed(source: SourceSettings, url: str, now_ms: int) -> str | None:
    """Return a command that sends a test; None if every secret has expired."""
    key = next((key for key in source.keys if key.until_ms > now_ms), None)
    if key is None:
        return None
    now_s = now_ms // 1000
    test = event(WEBHOOK_TEST, event_id=f"evt_test_{now_s}", created_at=iso(now_ms)).body
    signed = signature.header(key.value, now_s=now_s, body=test)
    headers = (f"{source.signature_header}: {signed}", "Content-Type: application/json")
    options = [word for header in headers for word in ("-H", header)]
    return shlex.join(["curl", "-i", *options, "--data-raw", test.decode(), url])
