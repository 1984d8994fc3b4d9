"""The steps of a rotation through the sender's API, and how they go on after an interruption.

The old secret is invalid from the moment of the API's answer on. So requests that match no secret
are kept before it, and the new secret is written to its file before anything else.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from relay.cli.output import moment, pairs, safe, when
from relay.cli.printing import Output
from relay.cli.private_file import SecretFile
from relay.cli.rotate.journal import Interrupted, Journal
from relay.cli.rotate.relay_side import RelaySide
from relay.cli.rotate.view import counts
from relay.cli.sender_api import SenderApi
from relay.core.config_values import Secret
from relay.core.errors import RelayError
from relay.core.units import number
from relay.video_service.api.errors import ServiceApiError

WAITS_S = (1.0, 5.0)
"""Waits before the API is asked for another secret, because its answer was lost."""

Say = Callable[[str], None]


class Rotation:
    """One run of the command."""

    def __init__(
        self, sender: SenderApi, file: SecretFile, relay: RelaySide, journal: Journal, *, say: Say
    ) -> None:
        self._sender = sender
        self._file = file
        self._relay = relay
        self._journal = journal
        self._say = say
        self._uncertain = False
        """Whether the service may have a secret that was lost on its way."""

    def run(self, *, now_ms: int) -> Output:
        """Rotate, or go on where an earlier run was interrupted; raises RelayError and OSError."""
        interrupted = self._journal.read()
        if interrupted is None or interrupted.step == "rotating":
            self._check()
            if interrupted is not None:
                self._recover(interrupted, now_ms=now_ms)
            self._rotate(now_ms=now_ms)
        else:
            begun = _begun(interrupted, now_ms=now_ms)
            self._say(f"an earlier run{begun} wrote the new secret: finishing it")
        view = self._finish()
        document = {
            "endpoint": self._sender.endpoint,
            "secret_file": str(self._file.path),
            "resumed": None if interrupted is None else interrupted.step,
            **view,
        }
        return Output(document, self._lines(view))

    def _check(self) -> None:
        """Try all that can be tried without a change."""
        try:
            self._relay.state()
            self._sender.ask(lambda api: api.webhook(self._sender.endpoint))
        except RelayError as error:
            error.add_note("nothing was changed")
            raise

    def _recover(self, interrupted: Interrupted, *, now_ms: int) -> None:
        """Use the secret that an earlier run may have written, before another one replaces it."""
        self._uncertain = True
        begun = _begun(interrupted, now_ms=now_ms)
        self._say(
            f"an earlier run{begun} was interrupted as the API rotated: the secret "
            "that it may have received is lost, so it rotates once more"
        )
        self._relay.admit()

    def _rotate(self, *, now_ms: int) -> None:
        was_armed = self._relay.state()["state"] == "armed"
        until = moment(self._relay.keep()["until_ms"])
        self._say(f"1/5  requests that match no secret are kept until {until}")
        try:
            self._journal.write("rotating", begun_ms=now_ms)
            self._say(f"2/5  asking the API for a new secret of {safe(self._sender.endpoint)}")
            secret = self._new_secret()
        except (ServiceApiError, OSError) as error:
            error.add_note(self._given_up(was_armed=was_armed, until=until))
            raise
        self._write(secret, now_ms=now_ms, until=until)
        self._say(f"3/5  the new secret is in {safe(str(self._file.path))}")

    def _new_secret(self) -> Secret:
        for wait_s in WAITS_S:
            try:
                return self._ask()
            except ServiceApiError as error:
                if not error.uncertain:
                    raise
                self._say(f"     {error.reason}: the secret may have changed; asking for another")
            time.sleep(wait_s)
        return self._ask()

    def _ask(self) -> Secret:
        try:
            return self._sender.ask(lambda api: api.rotate_secret(self._sender.endpoint))
        except ServiceApiError as error:
            self._uncertain = self._uncertain or error.uncertain
            raise

    def _given_up(self, *, was_armed: bool, until: str) -> str:
        """Return what the operator has to know; without a change, things are as before."""
        if self._uncertain:
            return _LOST.format(until=until)
        with suppress(OSError):
            self._journal.remove()
        if not was_armed:
            with suppress(RelayError):
                self._relay.admit()
        return "the secret was not changed"

    def _write(self, secret: Secret, *, now_ms: int, until: str) -> None:
        try:
            self._file.write(secret)
        except OSError as error:
            error.add_note(_LOST.format(until=until))
            raise
        # Without it, the next run would rotate once more, which does no harm.
        with suppress(OSError):
            self._journal.write("written", begun_ms=now_ms)

    def _finish(self) -> Any:
        try:
            view = self._relay.admit()
        except RelayError as error:
            for fault in getattr(error, "faults", ()):
                error.add_note(str(fault))
            error.add_note(f"the new secret is in {self._file.path}: run the command again")
            raise
        self._say(f"4/5  the relay uses it; {number(view['verified'])} kept requests were admitted")
        self._say("5/5  no other requests are kept any more")
        with suppress(OSError):
            self._journal.remove()
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
