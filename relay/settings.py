"""The values of a TOML config that are more than text and numbers: secrets, durations, sizes, rates."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_UNITS_BYTES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_UNITS_RATE = {"s": 1.0, "m": 60.0, "h": 3600.0}


class Duration(int):
    """Whole milliseconds, written `"250ms"`, `"5s"`, `"10m"`, `"2h"` or `"30d"`."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError for anything but digits and one unit."""
        match = re.fullmatch(r"([0-9]{1,9})(ms|s|m|h|d)", text)
        if match is None:
            raise ValueError('expected a duration such as "250ms", "5s", "10m", "2h" or "30d"')
        return cls(int(match[1]) * _UNITS_MS[match[2]])

    @property
    def seconds(self) -> float:
        return self / 1000


class Size(int):
    """Whole bytes, written `"512KiB"` or `"1MiB"`."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError for anything but digits and one unit."""
        match = re.fullmatch(r"([0-9]{1,9})(B|KiB|MiB|GiB)", text)
        if match is None:
            raise ValueError('expected a size such as "512KiB" or "1MiB"')
        return cls(int(match[1]) * _UNITS_BYTES[match[2]])


class Rate(float):
    """Events per second, written `"1/s"`, `"30/m"` or `"100/h"`."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError for anything but a positive number of events per unit."""
        match = re.fullmatch(r"([1-9][0-9]{0,8})/(s|m|h)", text)
        if match is None:
            raise ValueError('expected a rate such as "1/s", "30/m" or "100/h"')
        return cls(int(match[1]) / _UNITS_RATE[match[2]])


class Secret:
    """A value that does not print; `reveal` is the only way to it."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    @classmethod
    def resolve(cls, text: str, environ: Mapping[str, str] = os.environ) -> Self:
        """Read `env:NAME` or `file:/path`, or take the text itself.

        One trailing newline of a file is dropped.
        Raises ValueError where the reference leads nowhere or to nothing but white space.
        """
        scheme, _, rest = text.partition(":")
        match scheme:
            case "env":
                value = _from_environment(rest, environ)
            case "file":
                value = _from_file(rest)
            case _:
                value = text
        if not value.strip():
            raise ValueError("is empty")
        return cls(value)

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "***"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)


def decode(kind: type[Any], value: object) -> Any:  # noqa: ANN401
    """Turn a TOML value into one of the types above; msgspec calls this for each of them.

    Raises ValueError with what was expected.
    """
    if kind not in (Duration, Size, Rate, Secret):
        raise ValueError(f"no such setting type: {kind.__name__}")
    if not isinstance(value, str):
        raise ValueError("expected text in quotes")  # noqa: TRY004
    return kind.resolve(value) if kind is Secret else kind.parse(value)


def _from_environment(name: str, environ: Mapping[str, str]) -> str:
    if name not in environ:
        raise ValueError(f"the environment variable {name} is not set")
    return environ[name]


def _from_file(path: str) -> str:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        cause = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ValueError(f"the file {path} cannot be read: {cause}") from None
    return text.removesuffix("\n").removesuffix("\r")
