"""Protocol of the limits of wrong tokens at the login, by address and in total."""

import ipaddress
import math
from typing import Protocol

TRIES = 5
"""Wrong tokens in a row from one address; further tries come one by one."""

TRY_AGAIN_S = 30.0

ADDRESSES_MAX = 10_000
"""Addresses that are remembered; the one that failed longest ago is forgotten first."""

TOTAL_BURST = 60
TOTAL_INTERVAL_S = 0.5
"""From all addresses together, as many wrong tokens a second as the admin API refuses."""

TOTAL_WAIT_S = math.ceil(TRY_AGAIN_S)

_IPV6_SITE_BITS = 64


class LoginLimits(Protocol):
    """Counts wrong tokens, on all relays of a store together; methods raise StoreError.

    A count is held as the time at which all of its tries are free again.
    """

    async def take(self, address: str | None) -> int:
        """Take a try of an address, before the token is looked at.

        Returns 0, or the time in seconds until the address has one: then none is taken. Failures of
        other addresses do not count, so that they cannot keep an operator out.
        """
        ...

    async def put_back(self, address: str | None) -> None:
        """Return the try, because the token was right.

        Earlier ones stay taken, or a viewer could try any number of admin tokens.
        """
        ...

    async def failed(self) -> int:
        """Count a wrong token.

        Returns the wait to answer if all addresses together fail too often, else 0.
        """
        ...


def site(address: str | None) -> str:
    """Return what counts as one address: of IPv6 a network, which one customer gets whole."""
    if address is None or ":" not in address:
        return address or ""
    return str(ipaddress.IPv6Network((address, _IPV6_SITE_BITS), strict=False))
