"""All error classes that other rooms raise and catch.

Their texts are logged and shown, so they never hold a secret, a URL, an address or a body.
"""

from dataclasses import KW_ONLY, dataclass
from typing import Literal, Self

import msgspec

RejectReason = Literal["missing", "ambiguous", "malformed", "mismatch", "stale", "future"]
BodyFault = Literal["too_large", "timeout", "disconnected"]


class RelayError(Exception):
    """Base class of all errors below."""


@dataclass(eq=False, repr=False)
class Rejected(RelayError):
    """A request failed verification; the reason is for metrics and logs, never for the response.

    `skew_s` (our time minus the sender's) is set only if the signature itself is valid.
    """

    reason: RejectReason
    _: KW_ONLY
    skew_s: int | None = None


@dataclass(eq=False, repr=False)
class BodyRejected(RelayError):
    """A request's body could not be read to its end."""

    reason: BodyFault


class InvalidTemplate(RelayError):
    """A template that does not compile or cannot be rendered."""


class InvalidRule(RelayError):
    """A `when` that does not compile."""


class UnreadableSetting(RelayError):
    """A check needs a setting whose value is unreadable and reported already: skip the check."""


class Fault(msgspec.Struct, frozen=True):
    """A fault in a config: the key (`sink[1].retry.first`) and the expected value."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class ConfigError(RelayError):
    """A config document has faults; holds all of them."""

    def __init__(self, file: str, faults: tuple[Fault, ...]) -> None:
        super().__init__("\n".join(f"{file}: {fault}" for fault in faults))
        self.file = file
        self.faults = faults


class SenderApiMissing(RelayError):
    """A command needs a `[source.api]`, or its endpoint, which the config lacks."""


class SecretNotRotatable(RelayError):
    """A source's secret is not in a file of its own, so that no command can replace it."""


class FileRefused(RelayError):
    """A secret's file cannot be written, so that nothing was begun."""

    def __init__(self, path: object, cause: str) -> None:
        super().__init__(f"{path}: {cause}; nothing was changed")


class Stopping(RelayError):
    """The relay is shutting down and accepts no new work."""


class NotReconciled(RelayError):
    """A reconciliation cannot begin; the text says why."""


class ListenFailed(RelayError):
    """The relay cannot listen on an address."""

    def __init__(self, address: str, cause: str) -> None:
        super().__init__(f"cannot listen on {address}: {cause}")


class SocketRefused(RelayError):
    """An inherited socket is unusable; a restart would not help."""

    def __init__(self, cause: str) -> None:
        super().__init__(f"cannot use the inherited sockets: {cause}")


class StoreError(RelayError):
    """Base class of the store's errors; a request must not be answered with a 2xx."""


class StoreUnavailable(StoreError):
    """A write or a query failed; a later one may succeed."""


class StoreFull(StoreUnavailable):
    """The disk is full: nothing was written; the store recovers once there is space."""


class StoreBroken(StoreError):
    """The disk failed: the state on disk is unknown, so the store accepts no further writes."""


class StoreMoved(StoreBroken):
    """A file of the store was removed or replaced; the file that SQLite has open is intact."""


class StoreLocked(StoreError):
    """Another relay holds the store."""


class StoreExposed(StoreError):
    """The store's file has a second name (hard link), which would bypass the lock."""


class StoreRefused(StoreError):
    """The database, or its file, refuses this relay until an operator acts."""


class StoreLacks(StoreError):
    """The store's engine does not have this operation; the text says what to use instead."""


class StoreTooNew(StoreError):
    """The schema was written by a newer relay."""


@dataclass(eq=False, repr=False)
class SinkError(RelayError):
    """Base class of the errors that a sink raises."""

    reason: str
    """May be logged."""
    _: KW_ONLY
    status: int | None = None
    """The destination's own code, if it has one."""
    answer: str = ""
    """A bounded excerpt of the response; stored with the attempt only."""
    about_event: bool = False
    """The destination responded to this very event, so the event may be at fault."""
    unsent: bool = False
    """Nothing was sent, so that the destination was not asked: for want of something that all
    events need, such as a token or a proxy, or because nothing can be made of this one (`Refused`).
    """


@dataclass(eq=False, repr=False)
class Temporary(SinkError):
    """Try this event again."""

    retry_after_ms: int | None = None
    """The destination's minimum wait, for the whole sink."""


class Refused(SinkError):
    """The destination will never accept this event: it becomes a dead letter, the sink goes on."""


class Misconfigured(SinkError):
    """The destination accepts nothing until an operator acts: the sink is parked, its backlog kept.

    With `about_event`, possibly only this event is affected.
    """


Meaning = tuple[type[SinkError], str]
"""Of a destination's code: the error that it raises, and its sentence for the operator."""


class RefusesAll(Misconfigured):
    """The destination refuses one event after another, so no single event is at fault.

    Sinks raise `Refused`; the relay replaces it by this.
    """


class AdminApiError(RelayError):
    """A request to a running relay failed; the text is for the operator.

    `faults` are those of the config that it refused.
    """

    def __init__(self, text: str, *, faults: tuple[Fault, ...] = ()) -> None:
        super().__init__(text)
        self.faults = faults


class RelayUnreachable(AdminApiError):
    """No relay answered, or not in time."""


class NoVerdict(AdminApiError):
    """The relay's health could not be determined."""

    @classmethod
    def of(cls, error: AdminApiError) -> Self:
        """Convert an AdminApiError, with its notes."""
        verdict = cls(str(error), faults=error.faults)
        for note in getattr(error, "__notes__", ()):
            verdict.add_note(note)
        return verdict
