"""Checks of several values together, and warnings about unusual values."""

import ipaddress
import stat
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from relay.config.sample_routes import reach
from relay.config.secret_checks import check_form, check_secrets, check_signing
from relay.config.table import FAULTY, Findings, KeyPath, Table, quoted
from relay.core.config_values import Address, Duration
from relay.core.event import KINDS, LEAD_CAPTURED, WEBHOOK_TEST
from relay.core.routing import Route
from relay.core.setting_errors import suggestion
from relay.core.sink import SinkSettings
from relay.outbound.template import opens_with
from relay.video_service.api.fields import NAMES

SENDER_RETRY_WINDOW = Duration.parse("11m")
"""Longest time from an event's first attempt to its last: 6 attempts, 20 to 320 s apart."""

TOLERANCE_LONG = Duration.parse("1h")


class Document(msgspec.Struct, frozen=True):
    """All tables of a document; `routes` parallels `sinks`, with None for an invalid rule."""

    server: Table
    store: Table
    admin: Table
    log: Table
    outbound: Table
    sources: tuple[Table, ...]
    sinks: tuple[Table, ...]
    routes: tuple[Route | None, ...]
    source_names: tuple[object, ...]
    """Names as written, valid or not; None for a missing one."""


def check(document: Document, findings: Findings) -> None:
    """Note all faults and warnings that concern several values."""
    _distinct(document, findings)
    check_secrets(document.sources, document.admin, findings)
    check_signing(document.sinks, findings)
    _named_sources(document, findings)
    _listeners(document, findings)
    _proxies(document, findings)
    _store(document, findings)
    _retention(document, findings)
    _retention_by_kind(document, findings)
    _apis(document, findings)
    _tolerances(document, findings)
    _waits(document, findings)
    _reach(document, findings)
    _rules(document, findings)
    _destinations(document, findings)
    _enrichment(document, findings)


def _distinct(document: Document, findings: Findings) -> None:
    for tables, key in (
        (document.sources, "name"),
        (document.sources, "path"),
        (document.sinks, "name"),
    ):
        seen: dict[str, Table] = {}
        for table in tables:
            if (value := table.get(key)) is None:
                continue
            first = seen.setdefault(value.rstrip("/"), table)  # `/a` and `/a/` are one path
            if first is not table:
                message = f"is already used by {first.place.text}: expected another {key}"
                findings.fault(table.at(key), message)


def _named_sources(document: Document, findings: Findings) -> None:
    if not all(isinstance(name, str) for name in document.source_names):
        return  # a sink may refer to the source whose name is unreadable
    names = [name for source in document.sources if (name := source.get("name")) is not None]
    for sink in document.sinks:
        for place, name in sink.items("sources"):
            if name not in document.source_names:
                findings.fault(place, f"is not a source: {quoted(name)}{_known(name, names)}")


def _known(name: str, names: list[str]) -> str:
    return suggestion(name, names) or (f"; expected one of: {', '.join(names)}" if names else "")


def _listeners(document: Document, findings: Findings) -> None:
    public: Address | None = document.server.get("listen")
    admin: Address | None = document.server.get("admin_listen")
    if admin is None:
        return
    if not admin.is_loopback and document.admin.whole and document.admin.get("token") is None:
        findings.warn(
            document.server.at("admin_listen"),
            "is open to the network, but the API is off: set [admin] token",
        )
    if public is None or public.port != admin.port or admin.port == 0:
        return
    if public.host == admin.host or public.is_wildcard or admin.is_wildcard:
        findings.fault(
            document.server.at("admin_listen"),
            f"shares port {admin.port} with server.listen: expected another port",
        )


def _proxies(document: Document, findings: Findings) -> None:
    for place, network in document.server.items("trusted_proxies"):
        if not ipaddress.ip_network(network).prefixlen:
            findings.warn(
                place,
                "trusts every address, so that limits and the list of changes go by what a "
                "stranger writes into X-Forwarded-For: name the proxies",
            )


def _store(document: Document, findings: Findings) -> None:
    path = document.store.get("path")
    if path is None:
        return
    if path.startswith(("~", "$")):
        message = f"begins with {path[0]}, which the relay does not expand: write the whole path"
        findings.mistake(document.store.at("path"), message)
    try:
        mode = Path(path).stat().st_mode
    except OSError:
        return  # opening the store reports the cause
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
        findings.fault(document.store.at("path"), f"is {kind}: expected the path of a file")


def _retention(document: Document, findings: Findings) -> None:
    payload = document.store.get("payload_retention")
    dedupe = document.store.get("dedupe_retention")
    if dedupe is None:
        return
    place = document.store.at("dedupe_retention")
    if payload is not None and dedupe < payload:
        findings.fault(place, "is shorter than store.payload_retention: expected as long or longer")
    tolerances = [table.get("tolerance") or 0 for table in document.sources]
    if dedupe < max(tolerances, default=0) + SENDER_RETRY_WINDOW:
        findings.fault(
            place,
            "is shorter than a source's tolerance plus 11m, in which the sender retries: "
            "expected a longer one, or a late retry counts as a new event",
        )


def _retention_by_kind(document: Document, findings: Findings) -> None:
    dedupe = document.store.get("dedupe_retention")
    for glob, keep in (document.store.get("retention") or {}).items():
        place = document.store.at("retention").key(glob)
        if not glob.strip():
            findings.fault(place, 'is empty: expected a kind or a glob such as "video.*"')
        elif not any(fnmatchcase(kind, glob) for kind in KINDS):
            findings.warn(place, f"matches no kind of the video service{suggestion(glob, KINDS)}")
        if keep is not FAULTY and dedupe is not None and keep > dedupe:
            message = "is longer than store.dedupe_retention: expected as long or shorter"
            findings.fault(place, message)


def _apis(document: Document, findings: Findings) -> None:
    for source in document.sources:
        if isinstance(api := source.get("api"), Table):
            check_api(api, findings)
            if (key := api.get("key")) is not None:
                check_form(api.at("key"), key, findings)
        _reconciliation(document, source, findings)


def _reconciliation(document: Document, source: Table, findings: Findings) -> None:
    if source.get("reconcile") != "auto":
        return
    place = source.at("reconcile")
    if source.get("api") is None:
        findings.fault(place, 'needs [source.api]: expected "ask" or "off" without one')
    elif not any(sink.get("reconstructed") is True for sink in document.sinks):
        findings.warn(place, "reaches no sink: none has reconstructed = true")


def _tolerances(document: Document, findings: Findings) -> None:
    for source in document.sources:
        if (source.get("tolerance") or 0) > TOLERANCE_LONG:
            findings.warn(
                source.at("tolerance"), "is long: a captured request can be replayed for this long"
            )


def _waits(document: Document, findings: Findings) -> None:
    for sink in document.sinks:
        retry = sink.get("retry")
        if not isinstance(retry, Table):
            continue
        first, longest = retry.get("first"), retry.get("max")
        if first is not None and longest is not None and first > longest:
            findings.fault(
                retry.at("first"),
                f"is longer than {retry.at('max').text}: expected as long or shorter",
            )


def _reach(document: Document, findings: Findings) -> None:
    if not document.sinks:
        findings.warn(
            KeyPath("", "").key("sink"), "none is configured: events are stored, but not delivered"
        )
    for sink in document.sinks:
        for place, glob in sink.items("events"):
            if not any(_reaches(kind, glob) for kind in KINDS):
                findings.warn(
                    place, f"matches no kind of the video service{suggestion(glob, KINDS)}"
                )


def _reaches(kind: str, glob: str) -> bool:
    return glob == kind if kind == WEBHOOK_TEST else fnmatchcase(kind, glob)


def _rules(document: Document, findings: Findings) -> None:
    for sink, route in zip(document.sinks, document.routes, strict=True):
        if route is None or sink.get("when") is None:
            continue
        source = next((name for _, name in sink.items("sources")), "sample")
        failing = [each.event for each in reach(route, source) if each.failed]
        # A mistake in the rule is the cause, and said already.
        if failing and sink.at("when").text not in {each.path for each in findings.mistakes}:
            findings.warn(
                sink.at("when"),
                f"fails on samples of {', '.join(failing)}: such events become dead letters",
            )


def _destinations(document: Document, findings: Findings) -> None:
    for sink in document.sinks:
        key = sink.kind.destination if issubclass(sink.kind, SinkSettings) else None
        if key is not None and opens_with(sink.get(key) or "", "data"):
            findings.warn(
                sink.at(key),
                "begins with a value of `data`, so anyone who fills in a form chooses where the "
                "event goes: put fixed text first",
            )


def _enrichment(document: Document, findings: Findings) -> None:
    for sink in document.sinks:
        if sink.get("enrich") is not True:
            continue
        sources = _sources_of(sink, document)
        if sources and not any(map(_may_have_api, sources)):
            findings.fault(
                sink.at("enrich"),
                "nobody can say what a person has watched: expected [source.api] for at least one "
                "source of the sink",
            )
        globs = [glob for _, glob in sink.items("events")]
        if not any(_reaches(LEAD_CAPTURED, glob) for glob in globs):
            findings.warn(sink.at("enrich"), f"does nothing: `events` has no {LEAD_CAPTURED}")


def _sources_of(sink: Table, document: Document) -> list[Table]:
    names = {name for _, name in sink.items("sources")}
    return [source for source in document.sources if not names or source.get("name") in names]


def _may_have_api(source: Table) -> bool:
    # A faulty one is reported itself.
    return source.get("api") is not None or "api" in source.faulty()


def check_api(api: Table, findings: Findings) -> None:
    """Note faults and warnings of a sender's API."""
    url = urlsplit(api.get("base_url") or "")
    if url.scheme == "http" and not _is_loopback(url.hostname or ""):
        findings.warn(api.at("base_url"), "is not https: the key can be read on its way")
    for key, name in (api.get("fields") or {}).items():
        place = api.at("fields").key(key)
        if key not in NAMES:
            hint = suggestion(key, NAMES) or "; docs/video-service.md lists the keys"
            findings.fault(place, f"is not a known key{hint}")
        elif not name:
            findings.fault(place, "is empty: expected the field's name in answers")


def _is_loopback(host: str) -> bool:
    return Address(f"[{host}]:1" if ":" in host else f"{host}:1").is_loopback
