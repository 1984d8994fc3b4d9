"""Checks of secrets: strong enough, each in one place, and with labels that do not repeat them."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from relay.config.rules import SECRET_MIN_BYTES, is_placeholder, weakness
from relay.config.table import FAULTY, Findings, KeyPath, Table
from relay.core.authentication import SourceSettings
from relay.core.config_values import Secret
from relay.core.errors import Fault
from relay.outbound.template import is_template

SECRET_SHORT_BYTES = 16
SIGNING_PREFIX = "whsec_"
"""Of Standard Webhooks; it is no part of the secret."""

ENTROPY_MIN_BITS = 40
"""Entropy of a secret by the frequencies of its characters; 16 random hex digits have about 50."""

ROW_SHARE = 0.75
"""Share of neighbouring characters, as in `12345678`, above which a secret is no random text."""

LABEL_SHARED_CHARS = SECRET_MIN_BYTES
"""A label that shares this many characters with a secret is no coincidence."""


def check_secrets(sources: Sequence[Table], admin: Table, findings: Findings) -> None:
    """Note the faults and warnings of the sources' secrets and of the tokens."""
    _secrets(sources, findings)
    _tokens(admin, findings)
    _labels(sources, findings)


def check_form(place: KeyPath, secret: Secret, findings: Findings) -> None:
    """Warn of a readable secret that is short or easy to guess."""
    value = secret.reveal()
    if len(value.encode()) < SECRET_SHORT_BYTES:
        findings.warn(place, f"is short: a good secret has {SECRET_SHORT_BYTES} bytes or more")
    elif (cause := _pattern(value)) is not None:
        findings.warn(
            place,
            f"is easy to guess, because it {cause}: make one with `openssl rand -hex 32`",
        )


def check_signing(sinks: Sequence[Table], findings: Findings) -> None:
    """Note unfit signing secrets of sinks, and placeholders in headers and client secrets."""
    for sink in sinks:
        for place, secret in sink.items("signing_secrets"):
            bare = Secret(secret.reveal().removeprefix(SIGNING_PREFIX))
            complaint = weakness(bare)
            if complaint is None:
                check_form(place, bare, findings)
            else:
                findings.mistake(place, complaint)
        for name, value in (sink.get("headers") or {}).items():
            place = sink.at("headers").key(name)
            is_known = any(warning.path == place.text for warning in findings.warnings)
            if value is FAULTY or is_known or is_template(value.reveal()):
                continue
            if is_placeholder(_without_scheme(value)):
                findings.warn(place, _PLACEHOLDER)
        oauth2 = sink.get("oauth2")
        secret = oauth2.get("client_secret") if isinstance(oauth2, Table) else None
        if secret is not None and is_placeholder(secret.reveal()):
            findings.warn(oauth2.at("client_secret"), _PLACEHOLDER)


_PLACEHOLDER = "is a placeholder: expected the real value"


def _without_scheme(value: Secret) -> str:
    """Return the value of a header without a scheme before it, such as Bearer."""
    text = value.reveal()
    return text.partition(" ")[2] or text


def _pattern(text: str) -> str | None:
    """Return why a long text has few possibilities, without a part of it."""
    period = (text + text).index(text, 1)
    if period <= len(text) // 2:
        return "repeats a part"
    steps = [ord(after) - ord(before) for before, after in pairwise(text)]
    if max(steps.count(1), steps.count(-1)) > len(steps) * ROW_SHARE:
        return "is a row of neighbouring characters"
    counts = Counter(text).values()
    bits = -sum(count * math.log2(count / len(text)) for count in counts)
    return f"has only {len(counts)} different characters" if bits < ENTROPY_MIN_BITS else None


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
    owners: dict[Secret, tuple[int, KeyPath]] = {}
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


def _signing_secrets(source: Table) -> Iterator[tuple[KeyPath, Secret]]:
    """Yield the readable secrets of a source with their places."""
    for place, table in source.items("secrets"):
        if (secret := table.get("secret")) is not None:
            yield place, secret


def _labels(sources: Sequence[Table], findings: Findings) -> None:
    known = [secret.reveal() for source in sources for _, secret in _signing_secrets(source)]
    for source in sources:
        seen: dict[str, KeyPath] = {}
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
