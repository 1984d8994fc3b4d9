"""The steps of a rotation through the sender's API, and how they go on after an interruption.

The old secret is invalid from the moment of the API's answer on. So requests that match no secret
are kept before it, and the new secret is written to its file before anything else.
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast
from urllib.parse import quote

import msgspec

from relay.cli import private_file
from relay.cli.client import AdminClient
from relay.cli.output import Output, moment, pairs, safe, when
from relay.cli.private_file import SecretFile
from relay.cli.sender_api import SenderApi
from relay.core.config_values import Secret
from relay.core.errors import RelayError
from relay.core.units import number
from relay.video_service.api.errors import ServiceApiError

WAITS_S = (1.0, 5.0)
"""Waits before the API is asked for another secret, because its answer was lost."""

Say = Callable[[str], None]


RotationStep = Literal["rotating", "written"]
"""`rotating`: the API may have been asked; `written`: the new secret is in its file."""
QUARANTINE_MS = 15 * 60 * 1000
"""Time for which requests are kept, and so in which an interrupted run is best repeated."""


class Interrupted(NamedTuple):
    """The step that an earlier run of the command had reached, and when it began."""

    step: RotationStep
    begun_ms: int | None


class Journal:
    """How far a rotation has come, in a file beside the secret's; it holds no secret.

    Every method but `read` raises OSError.
    """

    def __init__(self, secret_file: Path, *, endpoint: str) -> None:
        self._path = secret_file.with_name(f".{secret_file.name}.rotation")
        self._endpoint = endpoint

    def read(self) -> Interrupted | None:
        """Return where an earlier run was interrupted; None where none was.

        A file that cannot be understood counts as the step that is safe to repeat.
        """
        try:
            text = self._path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            document = json.loads(text)
            if document["endpoint"] != self._endpoint:
                return None
            step = "written" if document["step"] == "written" else "rotating"
            return Interrupted(cast("RotationStep", step), int(document["begun_ms"]))
        except (ValueError, KeyError, TypeError, RecursionError):
            return Interrupted("rotating", None)

    def write(self, step: RotationStep, *, begun_ms: int) -> None:
        document = {"endpoint": self._endpoint, "step": step, "begun_ms": begun_ms}
        private_file.replace(self._path, json.dumps(document).encode())

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)


def rotation_path(source: str) -> str:
    """Return the path of a source's rotation in the admin API."""
    return f"/sources/{quote(source, safe='')}/rotation"


class RelaySide:
    """The rotation of one source in the running relay; every method raises AdminApiError."""

    def __init__(self, client: AdminClient, source: str) -> None:
        self._client = client
        self._path = rotation_path(source)

    def state(self) -> Any:
        return self._client.get(self._path)

    def keep(self) -> Any:
        """Have requests that match no secret kept for a while."""
        return self._client.post(self._path, {"duration_ms": QUARANTINE_MS})

    def admit(self) -> Any:
        """Use the secret in the file, admit the kept requests that it verifies, keep no others."""
        if self.state()["state"] != "none":
            return self._client.post(f"{self._path}/finish")
        self._client.reload()  # the quarantine has expired meanwhile
        return self.state()


class RotationRun(msgspec.Struct, eq=False):
    """One run of the command."""

    sender: SenderApi
    file: SecretFile
    relay: RelaySide
    journal: Journal
    say: Say
    _uncertain: bool = False
    """Whether the service may have a secret that was lost on its way."""

    def run(self, *, now_ms: int) -> Output:
        """Rotate, or go on where an earlier run was interrupted; raises RelayError and OSError."""
        interrupted = self.journal.read()
        if interrupted is None or interrupted.step == "rotating":
            self._check()
            if interrupted is not None:
                self._recover(interrupted, now_ms=now_ms)
            self._rotate(now_ms=now_ms)
        else:
            begun = _begun(interrupted, now_ms=now_ms)
            self.say(f"an earlier run{begun} wrote the new secret: finishing it")
        view = self._finish()
        document = {
            "endpoint": self.sender.endpoint,
            "secret_file": str(self.file.path),
            "resumed": None if interrupted is None else interrupted.step,
            **view,
        }
        return Output(document, self._lines(view))

    def _check(self) -> None:
        """Try all that can be tried without a change."""
        try:
            self.relay.state()
            self.sender.ask(lambda api: api.webhook(self.sender.endpoint))
        except RelayError as error:
            error.add_note("nothing was changed")
            raise

    def _recover(self, interrupted: Interrupted, *, now_ms: int) -> None:
        """Use the secret that an earlier run may have written, before another one replaces it."""
        self._uncertain = True
        begun = _begun(interrupted, now_ms=now_ms)
        self.say(
            f"an earlier run{begun} was interrupted as the API rotated: the secret "
            "that it may have received is lost, so it rotates once more"
        )
        self.relay.admit()

    def _rotate(self, *, now_ms: int) -> None:
        was_armed = self.relay.state()["state"] == "armed"
        until = moment(self.relay.keep()["until_ms"])
        self.say(f"1/5  requests that match no secret are kept until {until}")
        try:
            self.journal.write("rotating", begun_ms=now_ms)
            self.say(f"2/5  asking the API for a new secret of {safe(self.sender.endpoint)}")
            secret = self._new_secret()
        except (ServiceApiError, OSError) as error:
            error.add_note(self._given_up(was_armed=was_armed, until=until))
            raise
        self._write(secret, now_ms=now_ms, until=until)
        self.say(f"3/5  the new secret is in {safe(str(self.file.path))}")

    def _new_secret(self) -> Secret:
        for wait_s in WAITS_S:
            try:
                return self._ask()
            except ServiceApiError as error:
                if not error.uncertain:
                    raise
                self.say(f"     {error.reason}: the secret may have changed; asking for another")
            time.sleep(wait_s)
        return self._ask()

    def _ask(self) -> Secret:
        try:
            return self.sender.ask(lambda api: api.rotate_secret(self.sender.endpoint))
        except ServiceApiError as error:
            self._uncertain = self._uncertain or error.uncertain
            raise

    def _given_up(self, *, was_armed: bool, until: str) -> str:
        """Return what the operator has to know; without a change, things are as before."""
        if self._uncertain:
            return _LOST.format(until=until)
        with suppress(OSError):
            self.journal.remove()
        if not was_armed:
            with suppress(RelayError):
                self.relay.admit()
        return "the secret was not changed"

    def _write(self, secret: Secret, *, now_ms: int, until: str) -> None:
        try:
            self.file.write(secret)
        except OSError as error:
            error.add_note(_LOST.format(until=until))
            raise
        # Without it, the next run would rotate once more, which does no harm.
        with suppress(OSError):
            self.journal.write("written", begun_ms=now_ms)

    def _finish(self) -> Any:
        try:
            view = self.relay.admit()
        except RelayError as error:
            for fault in getattr(error, "faults", ()):
                error.add_note(str(fault))
            error.add_note(f"the new secret is in {self.file.path}: run the command again")
            raise
        self.say(f"4/5  the relay uses it; {number(view['verified'])} kept requests were admitted")
        self.say("5/5  no other requests are kept any more")
        with suppress(OSError):
            self.journal.remove()
        return view

    def _lines(self, view: dict[str, Any]) -> Iterator[str]:
        yield f"{view['source']}: rotated"
        yield from pairs(counts(view), indent="  ")
        if view["waiting"]:
            yield _UNVERIFIED.format(until=moment(view["expires_ms"]))


_LOST = (
    "the secret may have changed, and nobody has the new one: run the command again, and it "
    "rotates once more; requests that match no secret are kept until {until}"
)
_UNVERIFIED = (
    "Unverified requests match no secret of the config: they are forged, or signed with a secret "
    "that was lost. The service tries those again, signed with the new one. They are kept until "
    "{until}."
)


def _begun(interrupted: Interrupted, *, now_ms: int) -> str:
    begun_ms = interrupted.begun_ms
    return "" if begun_ms is None else f", begun {when(begun_ms, now_ms=now_ms)},"


def finished(source: str, view: dict[str, Any]) -> Iterator[str]:
    """Yield the end of a rotation, with the kept requests by outcome."""
    yield f"{source}: finished"
    yield from pairs(counts(view), indent="  ")
    if view["waiting"]:
        yield (
            f"Unverified requests match no secret of {source}: they are forged, or signed with a "
            f"secret that is not in the config. They are kept until {moment(view['expires_ms'])}; "
            "if a secret is wrong, correct it and run finish again."
        )


def counts(view: dict[str, Any]) -> Iterator[tuple[str, object]]:
    """Yield the numbers of kept requests by outcome."""
    for name in ("kept", "verified", "duplicates"):
        yield name, view[name]
    yield "unverified", view["waiting"]
    if view["dropped"]:
        yield "dropped", f"{number(view['dropped'])}, over a limit"
