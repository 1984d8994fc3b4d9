"""The headers that an operator adds to each request: fixed ones, and templates over the event."""

import re
from collections.abc import Iterator, Mapping

from relay.core.config_values import SecretTemplate
from relay.core.errors import InvalidTemplate
from relay.core.setting_errors import Faults
from relay.outbound.template import Rendering, Template, is_template

Headers = list[tuple[str, str]]

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\x21-\x7e]([\t\x20-\x7e]*[\x21-\x7e])?")
_OURS = re.compile(
    r"(webhook|ce|relay)-.*|host|content-length|content-encoding|transfer-encoding|connection"
    r"|upgrade|te|trailer|expect|accept-encoding",
    re.IGNORECASE,
)
_EXPECTED = "expected printable ASCII"


class OwnHeaders:
    """Values that the config holds itself may be templates; those behind references are sent."""

    def __init__(self, headers: Mapping[str, SecretTemplate]) -> None:
        """Raises ValueError and InvalidTemplate as `Faults` does, with the keys."""
        self.fixed: Headers = []
        self.names: set[str] = set()
        """In lower case."""
        self._templates: list[tuple[str, Template]] = []
        faults = Faults()
        for name, value in headers.items():
            with faults.collect():
                self._add(name, value)
            self.names.add(name.lower())
        faults.raise_all()

    @property
    def is_template(self) -> bool:
        return bool(self._templates)

    def fill(self, rendering: Rendering) -> Headers:
        """Fill in the templates; raises InvalidTemplate, with the key.

        A header that comes out empty is left out.
        """
        filled = [(name, _fill(name, value, rendering)) for name, value in self._templates]
        return [(name, value) for name, value in filled if value]

    def _add(self, name: str, value: SecretTemplate) -> None:
        if _NAME.fullmatch(name) is None:
            raise ValueError(f"headers.{name}: HTTP does not allow this name")
        if _OURS.fullmatch(name):
            raise ValueError(f"headers.{name}: is set by the relay itself")
        if name.lower() in self.names:
            raise ValueError(f"headers.{name}: duplicate header; names are case-insensitive")
        if is_template(value.reveal()) and not value.is_reference:
            self._templates.append((name, _compile(name, value.reveal())))
        elif _VALUE.fullmatch(value.reveal()) is None:
            raise ValueError(f"headers.{name}: {_EXPECTED}, no blanks at its ends")
        else:
            self.fixed.append((name, value.reveal()))


def unfilled(headers: Mapping[str, SecretTemplate]) -> Iterator[str]:
    """Yield a warning for each value behind a reference that looks like a template."""
    for name, value in headers.items():
        if value.is_reference and is_template(value.reveal()):
            yield (
                f"headers.{name}: looks like a template, but what a reference gives is sent as it "
                "is: write templates into the config itself"
            )


def _compile(name: str, source: str) -> Template:
    try:
        return Template(source)
    except InvalidTemplate as error:
        raise InvalidTemplate(f"headers.{name}: {error}") from None


def _fill(name: str, template: Template, rendering: Rendering) -> str:
    try:
        value = template.fill(rendering).strip(" \t")
    except InvalidTemplate as error:
        raise InvalidTemplate(f"headers.{name}: {error}") from None
    if not (value.isascii() and value.isprintable()):
        raise InvalidTemplate(f"headers.{name}: {_EXPECTED}; write | urlencode where it may not be")
    return value
