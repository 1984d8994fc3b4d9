"""Types of config values: secrets, durations, moments, sizes, rates, addresses."""

import ipaddress
import os
import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Any, Self

FILE_MAX_BYTES = 1 << 20
"""Maximum size of a config or secret file, in bytes; bounds the reading of `/dev/zero`."""

Read = Callable[[str], bytes]
"""Reads a referenced file; raises ValueError with the cause."""

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_UNITS_BYTES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_UNITS_RATE = {"s": 1.0, "m": 60.0, "h": 3600.0}


class Duration(int):
    """A duration in whole milliseconds, written `"250ms"`, `"5s"`, `"10m"`, `"2h"` or `"30d"`."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse digits and one unit; raises ValueError."""
        match = re.fullmatch(r"([0-9]{1,9})(ms|s|m|h|d)", text)
        if match is None:
            raise ValueError('expected a duration such as "250ms", "5s", "10m", "2h" or "30d"')
        return cls(int(match[1]) * _UNITS_MS[match[2]])

    @property
    def seconds(self) -> float:
        return self / 1000


class Moment(int):
    """A moment in milliseconds since the epoch, written as a TOML date or date-time, or as text.

    A date means its first moment; times without an offset are UTC.
    """

    @classmethod
    def parse(cls, value: object) -> Self:
        """Parse a date, or a date with a time; raises ValueError."""
        try:
            moment = datetime.fromisoformat(value) if isinstance(value, str) else value
            if isinstance(moment, date) and not isinstance(moment, datetime):
                moment = datetime.combine(moment, time())
            if isinstance(moment, datetime):
                at = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
                # The conversion to UTC may leave the range of years that Python supports.
                return cls(int(at.astimezone(UTC).timestamp() * 1000))
        except (ValueError, OverflowError):
            pass
        raise ValueError("expected a date or a time such as 2026-12-01 or 2026-12-01T09:30:00Z")

    def __str__(self) -> str:
        return datetime.fromtimestamp(self / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


class Size(int):
    """A size in bytes, written `"512KiB"` or `"1MiB"`."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse digits and one unit; raises ValueError."""
        match = re.fullmatch(r"([0-9]{1,9})(B|KiB|MiB|GiB)", text)
        if match is None:
            raise ValueError('expected a size such as "512KiB" or "1MiB"')
        return cls(int(match[1]) * _UNITS_BYTES[match[2]])


class Rate(float):
    """Events per second, written `"1/s"`, `"30/m"` or `"100/h"`."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a positive number of events per unit; raises ValueError."""
        match = re.fullmatch(r"([1-9][0-9]{0,8})/(s|m|h)", text)
        if match is None:
            raise ValueError('expected a rate such as "1/s", "30/m" or "100/h"')
        return cls(int(match[1]) / _UNITS_RATE[match[2]])


class Address(str):
    """An address to listen on, written `"127.0.0.1:8080"`, `"[::1]:8080"` or `"localhost:8080"`."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse host and port, both required; raises ValueError. The system assigns port 0."""
        match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z._-]+):([0-9]{1,5})", text)
        if match is None or int(match[2]) > 65535 or not _is_host(match[1]):
            raise ValueError('expected "host:port" such as "127.0.0.1:8080" or "[::1]:8080"')
        return cls(text)

    @classmethod
    def of(cls, bound: tuple[Any, ...]) -> Self:
        """Return the address of a socket's name; the rest of an IPv6 name is left out."""
        host, port = bound[:2]
        return cls(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")

    @property
    def host(self) -> str:
        """The host without the brackets of IPv6."""
        return self.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        return int(self.rpartition(":")[2])

    @property
    def is_loopback(self) -> bool:
        return self.host == "localhost" or _has(self.host, "is_loopback")

    @property
    def is_wildcard(self) -> bool:
        return _has(self.host, "is_unspecified")

    def url(self, port: int | None = None) -> str:
        """Return the URL from the same machine, with `port` in place of its own."""
        loopback = "::1" if ":" in self.host else "127.0.0.1"
        host = loopback if self.is_wildcard else self.host
        return f"http://{self.of((host, self.port if port is None else port))}"


class Network(str):
    """An address or a network, written `"127.0.0.1"`, `"::1"` or `"10.0.0.0/8"`."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse an address or network; raises ValueError, also for host bits after the prefix."""
        try:
            ipaddress.ip_network(text)
        except ValueError:
            raise ValueError('expected an address or a network such as "10.0.0.0/8"') from None
        return cls(text)


def read_bytes(path: str | Path) -> bytes:
    """Read a small file; raises ValueError with the cause."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(FILE_MAX_BYTES + 1)
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from error
    if len(content) > FILE_MAX_BYTES:
        raise ValueError("cannot be read: larger than 1 MiB")
    return content


def read_text(path: str | Path) -> str:
    """Read a small text file, line ends unchanged; raises ValueError with the cause."""
    return _text(read_bytes(path))


class Secret:
    """A secret value: printing shows `***`, only `reveal` returns it."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    @classmethod
    def resolve(
        cls, text: str, environ: Mapping[str, str] = os.environ, read: Read = read_bytes
    ) -> Self:
        """Resolve `env:NAME` or `file:/path`; other text is the value itself.

        One trailing newline of a file is dropped.
        Raises ValueError, naming the reference, if there is no value or a blank one.
        """
        scheme, _, name = text.partition(":")
        match scheme:
            case "env":
                value, origin = _from_environment(name, environ), f"the environment variable {name}"
            case "file":
                value, origin = _from_file(name, read), f"the file {name}"
            case _:
                value, origin = text, "the value"
        if not value.strip():
            raise ValueError(f"{origin} is empty")
        return cls(value)

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "***"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)


class SecretTemplate(Secret):
    """A secret in which templates may stand; it knows whether the config holds it, or refers to it.

    What a reference gives is another program's text, in which braces may be a password's.
    """

    __slots__ = ("is_reference",)

    def __init__(self, value: str, *, is_reference: bool = False) -> None:
        super().__init__(value)
        self.is_reference = is_reference

    def __eq__(self, other: object) -> bool:
        # The same text behind a reference is no template, so that a reload has to see a change.
        same_kind = isinstance(other, SecretTemplate) and other.is_reference == self.is_reference
        return same_kind and super().__eq__(other)

    __hash__ = Secret.__hash__

    @classmethod
    def resolve(
        cls, text: str, environ: Mapping[str, str] = os.environ, read: Read = read_bytes
    ) -> Self:
        value = Secret.resolve(text, environ, read).reveal()
        return cls(value, is_reference=text.startswith(("env:", "file:")))


def decode(
    kind: type[Any],
    value: object,
    environ: Mapping[str, str] = os.environ,
    read: Read = read_bytes,
) -> Any:
    """Convert a TOML value to one of the types above, as a msgspec decoding hook.

    Raises ValueError with the expected form.
    """
    if kind not in (Duration, Moment, Size, Rate, Secret, SecretTemplate, Address, Network):
        raise ValueError(f"no such setting type: {kind.__name__}")
    if kind is Moment:
        return Moment.parse(value)
    if issubclass(kind, Secret):
        text = value if isinstance(value, str) else None
        if text is None:
            raise ValueError("expected text in quotes")
        return kind.resolve(text, environ, read)
    # A value of another type fails like empty text, with the expected form.
    return kind.parse(value if isinstance(value, str) else "")


def _text(content: bytes) -> str:
    try:
        # Windows editors write a byte order mark, which would become part of a secret.
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(f"cannot be read: not UTF-8 text (line {line})") from None


def _from_environment(name: str, environ: Mapping[str, str]) -> str:
    if not name:
        raise ValueError('expected the name of an environment variable after "env:"')
    if name not in environ:
        raise ValueError(f"the environment variable {name} is not set")
    try:
        environ[name].encode()
    except UnicodeEncodeError:
        raise ValueError(f"the environment variable {name} is not UTF-8 text") from None
    return environ[name]


def _from_file(path: str, read: Read) -> str:
    if not path:
        raise ValueError('expected a path after "file:"')
    try:
        text = _text(read(path))
    except ValueError as error:
        raise ValueError(f"the file {path} {error}") from None
    return text.removesuffix("\r\n") if text.endswith("\r\n") else text.removesuffix("\n")


def _is_host(host: str) -> bool:
    # Digits, dots and brackets must form an address; anything else is a host name.
    if re.fullmatch(r"[0-9.]+|\[.*\]", host) is None:
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).version == (6 if host[0] == "[" else 4)
    except ValueError:
        return False


def _has(host: str, quality: str) -> bool:
    try:
        return bool(getattr(ipaddress.ip_address(host), quality))
    except ValueError:
        return False
