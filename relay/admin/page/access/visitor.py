"""The person before the page, as far as the relay knows."""

from dataclasses import dataclass, field

from relay.admin.page.access.forms import form_token
from relay.store.sessions import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Visitor:
    """A visitor who may see the page."""

    role: Role
    identifier: bytes | None = field(repr=False)
    """Of the session, a secret; None on loopback without any token."""
    address: str | None
    """Network address of the client."""

    @property
    def is_local_without_token(self) -> bool:
        return self.identifier is None

    def form_token(self) -> str:
        """Return the token that every form of this session carries; "" without a session."""
        return "" if self.identifier is None else form_token(self.identifier)
