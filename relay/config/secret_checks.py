"""Checks of secrets: strong enough, each in one place, and with labels that do not repeat them."""

from collections.abc import Iterable, Iterator, Sequence

from relay.config.rules import SECRET_MIN_BYTES
from relay.config.table import Findings, Place, Table
from relay.core.authentication import SourceSettings
from relay.core.config_values import Secret
from relay.core.errors import Fault

SECRET_SHORT_BYTES = 16
LABEL_SHARED_CHARS = SECRET_MIN_BYTES
"""A label that shares this many characters with a secret is no coincidence."""


def check_secrets(sources: Sequence[Table], admin: Table, findings: Findings) -> None:
    """Note the faults and warnings of the sources' secrets and of the tokens."""
    _secrets(sources, findings)
    _tokens(admin, findings)
    _labels(sources, findings)


def check_form(place: Place, secret: Secret, findings: Findings) -> None:
    """Warn of a readable secret that is short, or has white space around it."""
    value = secret.reveal()
    if len(value.encode()) < SECRET_SHORT_BYTES:
        findings.warn(place, f"is short: a good secret has {SECRET_SHORT_BYTES} bytes or more")
    if value != value.strip():
        findings.warn(place, "starts or ends with white space, which counts")


def expired(sources: Iterable[SourceSettings], *, now_ms: int) -> tuple[Fault, ...]:
    """Return a warning per expired secret; no part of the check, because it depends on the time."""
    return tuple(
        Fault(
            f"source.{source.name}.secrets",
            f"{key.label} {_EXPIRED}{_if_last(source, now_ms)}",
        )
        for source in sources
        for key in source.expired(now_ms)
    )


def _if_last(source: SourceSettings, now_ms: int) -> str:
    none_left = len(source.expired(now_ms)) == len(source.keys)
    return ", and the source has no other: every request is refused" if none_left else ""


_EXPIRED = "has reached its `until` and no longer verifies"


def _secrets(sources: Sequence[Table], findings: Findings) -> None:
    owners: dict[Secret, tuple[int, Place]] = {}
    for index, source in enumerate(sources):
        for place, secret in _signing_secrets(source):
            owner, first = owners.setdefault(secret, (index, place))
            if first is place:
                check_form(place, secret, findings)
            elif owner == index:
                findings.fault(place, f"is the same as {first.text}: expected another secret")
            else:
                # hostile-requests.md, row 53: secrets belong to one route.
                findings.warn(
                    place, f"is the same as {first.text}: each source accepts the other's requests"
                )


def _tokens(admin: Table, findings: Findings) -> None:
    token, viewer_token = admin.get("token"), admin.get("viewer_token")
    if token is not None:
        check_form(admin.at("token"), token, findings)
    if viewer_token is None:
        return
    if viewer_token == token:
        message = "is the same as admin.token: expected another secret"
        findings.fault(admin.at("viewer_token"), message)
    else:
        check_form(admin.at("viewer_token"), viewer_token, findings)


def _signing_secrets(source: Table) -> Iterator[tuple[Place, Secret]]:
    """Yield the readable secrets of a source with their places."""
    for place, table in source.items("secrets"):
        if (secret := table.get("secret")) is not None:
            yield place, secret


def _labels(sources: Sequence[Table], findings: Findings) -> None:
    known = [secret.reveal() for source in sources for _, secret in _signing_secrets(source)]
    for source in sources:
        seen: dict[str, Place] = {}
        for index, (place, table) in enumerate(source.items("secrets"), 1):
            label = table.get("label")
            if label is not None and any(_shares_text(label, secret) for secret in known):
                # The fault must not repeat the label either.
                findings.fault(table.at("label"), "repeats a part of a secret: expected a name")
                continue
            first = seen.setdefault(label or str(index), place)
            if first is not place:
                message = f"is already used by {first.text}: expected another label"
                findings.fault(table.at("label"), message)


def _shares_text(label: str, secret: str) -> bool:
    plain = secret.casefold()
    return any(
        label[start : start + LABEL_SHARED_CHARS] in plain
        for start in range(len(label) - LABEL_SHARED_CHARS + 1)
    )
