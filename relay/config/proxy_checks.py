"""Checks of `[outbound]` against itself, the environment and the sinks that it is for."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from relay.config.table import Findings, Table
from relay.core import proxies
from relay.core.sink import SinkSettings


def check_outbound(outbound: Table, environ: Mapping[str, str], findings: Findings) -> Table:
    """Note the faults of the table as a whole; return it, marked if there are any."""
    before = len(findings.faults)
    if outbound.get("proxy_from_environment") is True:
        _check_environment(outbound, environ, findings)
    is_whole = outbound.whole and len(findings.faults) == before
    return msgspec.structs.replace(outbound, whole=is_whole)


def _check_environment(outbound: Table, environ: Mapping[str, str], findings: Findings) -> None:
    place = outbound.at("proxy_from_environment")
    if outbound.get("proxy_url") is not None:
        findings.fault(place, "does not go with proxy_url: expected one of the two")
    if outbound.get("no_proxy"):
        message = "does not go with proxy_from_environment, which takes NO_PROXY in its place"
        findings.fault(outbound.at("no_proxy"), message)
    for name in proxies.unusable(environ):
        findings.fault(place, f"{name} holds no URL of a proxy: {proxies.EXPECTED}")
    if not proxies.named_in(environ):
        message = "finds neither HTTP_PROXY nor HTTPS_PROXY: requests go directly"
        findings.warn(place, message)


def warn_of_environment(
    outbound: Table,
    sinks: Sequence[Table],
    sources: Iterable[Table],
    environ: Mapping[str, str],
    findings: Findings,
) -> None:
    """Warn of a proxy that the environment names, and that not all requests go through."""
    is_chosen = outbound.get("proxy_url") is not None or outbound.get("proxy_from_environment")
    named = proxies.named_in(environ)
    if is_chosen or not (outbound.whole and named):
        return
    undecided = [
        sink for sink in sinks if proxies.is_proxied(sink.kind) and sink.get("proxy_url") is None
    ]
    adopting = [sink for sink in undecided if _adopts(sink)]
    if len(undecided) == len(adopting) and not any(source.get("api") for source in sources):
        return
    names = ", ".join(str(sink.get("name")) for sink in adopting)
    users = f"only {names} goes through it" if adopting else "no request goes through it"
    message = (
        f"{' and '.join(named)} is set, but {users}: expected true, or proxy_url, which is "
        '"direct" for none'
    )
    findings.warn(outbound.at("proxy_from_environment"), message)


def _adopts(sink: Table) -> bool:
    return issubclass(sink.kind, SinkSettings) and sink.kind.adopts_environment
