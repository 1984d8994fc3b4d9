"""Limits wrong tokens at the login, by address and in total."""

import ipaddress
import math
from collections import OrderedDict

TRIES = 5
"""Wrong tokens in a row from one address; further tries come one by one."""

TRY_AGAIN_S = 30.0

ADDRESSES_MAX = 10_000
"""Addresses that are remembered; the one that failed longest ago is forgotten first."""

TOTAL_BURST = 60
TOTAL_INTERVAL_S = 0.5
"""From all addresses together, as many wrong tokens a second as the admin API refuses."""

_IPV6_SITE_BITS = 64


class LoginLimit:
    """Counts wrong tokens; times are monotonic, in seconds.

    Each count is held as the time at which all of its tries are free again.
    """

    def __init__(self) -> None:
        self._free_at = OrderedDict[str, float]()
        self._total_free_at = 0.0

    def wait_s(self, address: str | None, *, now_s: float) -> int:
        """Return the time until this address may try again; 0 for at once.

        Failures of other addresses do not count, so that they cannot keep an operator out.
        """
        free_at = self._free_at.get(_site(address), 0.0)
        return math.ceil(max(0.0, free_at - now_s - (TRIES - 1) * TRY_AGAIN_S))

    def failed(self, address: str | None, *, now_s: float) -> int:
        """Count a wrong token; return the wait to answer if all addresses fail too often, else 0.

        A right token in between changes nothing, or a viewer could try any number of admin tokens.
        """
        site = _site(address)
        self._free_at[site] = max(now_s, self._free_at.pop(site, 0.0)) + TRY_AGAIN_S
        while len(self._free_at) > ADDRESSES_MAX:
            self._free_at.popitem(last=False)
        if self._total_free_at - now_s > (TOTAL_BURST - 1) * TOTAL_INTERVAL_S:
            return math.ceil(TRY_AGAIN_S)
        self._total_free_at = max(now_s, self._total_free_at) + TOTAL_INTERVAL_S
        return 0


def _site(address: str | None) -> str:
    """Return what counts as one address: of IPv6 a network, which one customer gets whole."""
    if address is None or ":" not in address:
        return address or ""
    return str(ipaddress.IPv6Network((address, _IPV6_SITE_BITS), strict=False))
