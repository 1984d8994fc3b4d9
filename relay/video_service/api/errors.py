"""The error of the video service's API; it holds no key, no address and no URL."""

from dataclasses import KW_ONLY, dataclass
from typing import Literal

from relay.core.errors import RelayError

Reason = Literal[
    "key refused",
    "no access",
    "not found",
    "request refused",
    "redirect refused",
    "rate limited",
    "service failed",
    "cannot connect",
    "no answer",
    "connection closed",
    "TLS failed",
    "proxy failed",
    "broken answer",
    "answer too large",
]


@dataclass(eq=False, repr=False)
class ServiceApiError(RelayError):
    """A request to the video service's API has no usable answer."""

    reason: Reason
    _: KW_ONLY
    status: int | None = None
    """The answer's status, if there was one."""
    uncertain: bool = False
    """The request may have been carried out nevertheless."""

    def __str__(self) -> str:
        return f"the video service's API: {self.reason}"
