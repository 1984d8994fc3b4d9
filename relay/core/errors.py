"""Every error that is raised on purpose; no other module defines one.

No text in here may carry a secret, a URL, an address or a body: these texts are logged and shown.
"""

from dataclasses import dataclass
from typing import Literal, Self

RejectReason = Literal["missing", "ambiguous", "malformed", "mismatch", "stale", "future"]
BodyFault = Literal["too_large", "timeout", "disconnected"]


class RelayError(Exception):
    """The base of every error below."""


class Rejected(RelayError):
    """A request that failed verification; the reason is for metrics and logs, never for the answer.

    `skew_s`, our time less the sender's, is told of what was really signed, but at another time.
    """

    def __init__(self, reason: RejectReason, *, skew_s: int | None = None) -> None:
        super().__init__(reason)
        self.reason: RejectReason = reason
        self.skew_s = skew_s


class BodyRejected(RelayError):
    """A request whose body was not read to its end."""

    def __init__(self, reason: BodyFault) -> None:
        super().__init__(reason)
        self.reason: BodyFault = reason


class InvalidTemplate(RelayError):
    """A template that does not compile or cannot be rendered."""


class InvalidRule(RelayError):
    """A `when` that does not compile."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One mistake in a config: where it is (`sink[1].retry.first`) and what was expected there."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class ConfigError(RelayError):
    """All faults of one config document at once."""

    def __init__(self, file: str, faults: tuple[Fault, ...]) -> None:
        super().__init__("\n".join(f"{file}: {fault}" for fault in faults))
        self.file = file
        self.faults = faults


class Stopping(RelayError):
    """Nothing new is begun, because the relay is about to end."""


class ListenFailed(RelayError):
    """An address that cannot be listened on."""

    def __init__(self, address: str, cause: str) -> None:
        super().__init__(f"cannot listen on {address}: {cause}")
        self.address = address


class SocketRefused(RelayError):
    """A socket that was handed over cannot be used, and another try would find it no better."""

    def __init__(self, cause: str) -> None:
        super().__init__(f"cannot use the sockets that were handed over: {cause}")


class StoreError(RelayError):
    """The store did not take something; nothing of it may be answered with a 2xx."""


class StoreFull(StoreError):
    """No room: nothing was written, and the store goes on by itself once there is room."""


class StoreBroken(StoreError):
    """The disk failed: nobody knows what was written, so the store takes nothing any more."""


class StoreMoved(StoreBroken):
    """A file of the store was removed or replaced; what SQLite holds open is whole."""


class StoreLocked(StoreError):
    """Another relay holds the store."""


class StoreExposed(StoreError):
    """The store's file has another name, by which a second relay could open it past the lock."""


class StoreTooNew(StoreError):
    """The schema was written by a newer relay."""


class SinkError(RelayError):
    """What a sink may raise; `reason` is fit for a log, `answer` is kept with the attempt only.

    `status` is the far end's own code, where it has one. `about_event` says that the far end
    answered to this very event, so that the event may be at fault rather than the sink.
    """

    def __init__(
        self,
        reason: str,
        *,
        status: int | None = None,
        answer: str = "",
        about_event: bool = False,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.status = status
        self.answer = answer
        self.about_event = about_event


class Temporary(SinkError):
    """Try this event again; `retry_after_ms` is a floor that the far end set for the whole sink."""

    def __init__(
        self,
        reason: str,
        *,
        status: int | None = None,
        answer: str = "",
        about_event: bool = False,
        retry_after_ms: int | None = None,
    ) -> None:
        super().__init__(reason, status=status, answer=answer, about_event=about_event)
        self.retry_after_ms = retry_after_ms


class Refused(SinkError):
    """The event will never be taken: it becomes a dead letter, the sink goes on."""


class Misconfigured(SinkError):
    """Nothing will be taken until someone acts: the sink is parked, its backlog kept.

    With `about_event` it may also be this event alone that is not taken.
    """


class ApiError(RelayError):
    """A running relay could not be asked, or said no; the text is for the operator.

    `faults` are those of a config that it was to take.
    """

    def __init__(self, text: str, *, faults: tuple[Fault, ...] = ()) -> None:
        super().__init__(text)
        self.faults = faults


class NoVerdict(ApiError):
    """The relay could not be asked how it is; it may be well or not."""

    @classmethod
    def of(cls, error: ApiError) -> Self:
        """The same complaint."""
        verdict = cls(str(error), faults=error.faults)
        for note in getattr(error, "__notes__", ()):
            verdict.add_note(note)
        return verdict
