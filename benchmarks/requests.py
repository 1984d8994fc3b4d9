"""Signed requests made beforehand, so that a load generator has nothing to compute."""

import time
from pathlib import Path
from secrets import token_hex

from benchmarks.rig import SECRET
from relay.core import signature

BODY_BYTES = 400


def bodies(count: int) -> list[bytes]:
    """Milestone events of 400 bytes with ids that no other call has."""
    # Random ones, as senders have them, are the hardest for an index.
    return [_body(f"evt_{token_hex(10)}") for _ in range(count)]


def signed(body: bytes) -> str:
    """The signature header for a body, good for five minutes."""
    return signature.header(SECRET.encode(), now_s=int(time.time()), body=body)


def write(path: Path, count: int) -> None:
    """Write one request a line, header and body with a tab between, as replay.lua reads them."""
    lines = (f"{signed(body)}\t{body.decode()}\n" for body in bodies(count))
    path.write_text("".join(lines), encoding="ascii")


def _body(event_id: str) -> bytes:
    head = (
        f'{{"id":"{event_id}","event":"video.watched","createdAt":"2026-11-02T09:30:00.000Z",'
        '"data":{"video":{"id":"vid_4711","title":"Getting started"},'
        '"viewer":{"email":"jane.doe@example.com","name":"Jane Doe"},'
        '"progress":50,"milestone":"50%","completed":false,"page":"'
    )
    tail = '"}}'
    return (head + "x" * (BODY_BYTES - len(head) - len(tail)) + tail).encode()
