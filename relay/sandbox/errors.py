"""Errors of the sandbox, beneath all else in it: above all, a request that the service refuses."""

from relay.core.errors import RelayError


class Refusal(RelayError):
    """A refused request, with the status that the API answers."""

    def __init__(self, status: int, message: str, *, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.retry_after_s = retry_after_s


class StateUnusable(RelayError):
    """The file of the sandbox's state cannot be read or written."""


def unknown(kind: str) -> Refusal:
    """Return the refusal of an id that does not exist."""
    return Refusal(404, f"There is no such {kind}.")
