"""Keyed digests in place of the e-mail addresses of a recorded change."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from relay.core.addresses import ADDRESS, plain
from relay.store.audit import Change
from relay.store.keyed_digests import PersonDigests

DIGEST_DIGITS = 16
"""Length of the digest: a prefix of the one in an erasure's record."""

TEXT_MAX = 500


class Pseudonymizer:
    """Replaces addresses by the digests of one store."""

    def __init__(self, digests: PersonDigests) -> None:
        self._digests = digests

    def pseudonymized(self, change: Change) -> Change:
        """Replace each e-mail address of a change by its keyed digest."""
        return replace(
            change,
            target=self._text(change.target),
            asked=self._values(change.asked),
            via=self._text(change.via),
        )

    def _values(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: self._digest(value) if name == "email" else self._value(value)
            for name, value in values.items()
        }

    def _value(self, value: object) -> object:
        match value:
            case str():
                return self._text(value)
            case list() | tuple():
                return [self._value(each) for each in value]
            case dict():
                return self._values(value)
        return value

    def _text(self, text: str | None) -> str | None:
        if text is None:
            return None
        return ADDRESS.sub(lambda match: self._digest(match[0]), text)[:TEXT_MAX]

    def _digest(self, address: str) -> str:
        address = plain(address)
        return f"person:{self._digests.digest(address).hex()[:DIGEST_DIGITS]}"
