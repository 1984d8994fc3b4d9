"""Rules for single values of the right type: bounds, names, paths, secrets."""

import re
from collections.abc import Callable
from ipaddress import IPv6Address
from typing import Any
from urllib.parse import urlsplit

from relay.config.table import describe
from relay.core import proxies
from relay.core.config_values import Duration, Rate, Secret, Size

SECRET_MIN_BYTES = 8
LABEL = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
"""Names of sources and sinks, which are metric labels."""

RESERVED_SOURCE = "unknown"
"""The label under which the receiver counts requests that match no source."""

_UNITS: dict[type[int], tuple[tuple[str, int], ...]] = {
    Duration: (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)),
    Size: (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)),
}
_PATH = re.compile(r"/[A-Za-z0-9._~!$&'()*+,;=:@/-]*")
_HOST_NAME = re.compile(r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*\.?")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_SCHEMA = re.compile(r"[A-Za-z_][A-Za-z0-9_ -]{0,62}")
_PLACEHOLDERS = ("changeme", "placeholder", "yoursecret", "replaceme", "insertsecret")
_VISIBLE = re.compile(r"[!-~]*")
_UNFILLED = re.compile(r"<.*>|\$\{.*\}|\$[A-Za-z_]+|\{\{.*\}\}")


def weakness(secret: Secret) -> str | None:
    """Describe why a secret is unfit, without showing it (hostile-requests.md, row 51)."""
    value = secret.reveal().strip()
    if len(value.encode()) < SECRET_MIN_BYTES:
        return f"is too short for a secret: expected {SECRET_MIN_BYTES} bytes or more"
    if is_placeholder(value):
        return "is a placeholder: expected the real secret"
    if len(set(value)) == 1:
        return "repeats one character: expected the real secret"
    return None


def is_placeholder(text: str) -> bool:
    """Whether a text stands where a secret is still to be put."""
    plain = re.sub(r"[^a-z]", "", text.lower())
    return any(word in plain for word in _PLACEHOLDERS) or _UNFILLED.fullmatch(text) is not None


def unsendable(secret: Secret) -> str | None:
    """Describe why a secret cannot be sent as a bearer token, without showing it."""
    if _VISIBLE.fullmatch(secret.reveal()) is None:
        return "has a character that no header carries: expected visible ASCII without blanks"
    return None


def _token(secret: Secret) -> str | None:
    """Describe why a secret cannot be sent as a bearer token, or is unfit."""
    return unsendable(secret) or weakness(secret)


def _between(low: Any, high: Any, bounds: str) -> Callable[[Any], str | None]:
    def check(value: Any) -> str | None:
        # Not `low > value`, which is false for NaN.
        return None if low <= value <= high else f"expected {bounds}, found {_written(value)}"

    return check


def _duration(low: str, high: str) -> Callable[[Any], str | None]:
    return _between(Duration.parse(low), Duration.parse(high), f"{low} to {high}")


def _size(low: str, high: str) -> Callable[[Any], str | None]:
    return _between(Size.parse(low), Size.parse(high), f"{low} to {high}")


def _matching(pattern: re.Pattern[str], written: str) -> Callable[[str], str | None]:
    return lambda text: None if pattern.fullmatch(text) else f"expected {written}"


def _source_name(name: str) -> str | None:
    if name == RESERVED_SOURCE:
        return f'"{RESERVED_SOURCE}" is reserved for other requests: expected another name'
    return _label(name)


def _source_path(path: str) -> str | None:
    if not path.startswith("/"):
        return 'expected a path that begins with "/"'
    if _PATH.fullmatch(path) is None:
        return "expected only characters that need no %-encoding: letters, digits, / - . _ ~"
    if "//" in path or {".", ".."} & set(path.split("/")):
        return 'expected a path without "//", "." or "..": proxies rewrite them'
    return None


def _api_url(url: str) -> str | None:
    """Describe why a text is not the address of an API, without the text: it may hold a secret."""
    try:
        parts = urlsplit(url)
        host = parts.hostname if parts.port != 0 else None
    except ValueError:
        host = None
    if not host or parts.scheme not in {"http", "https"} or _VISIBLE.fullmatch(url) is None:
        return 'expected a URL such as "https://api.example.com"'
    if parts.username is not None or parts.query or parts.fragment:
        return "expected a URL without user, password, query and fragment"
    if parts.path.rstrip("/").endswith("/v1"):
        return 'expected a URL without "/v1", with which every path of the API begins'
    return None


def _api_id(text: str) -> str | None:
    if _VISIBLE.fullmatch(text) is None or text in {"", ".", ".."}:
        return "expected the id that `relay endpoint register` printed"
    return None


def _glob(glob: str) -> str | None:
    return None if glob.strip() else 'is empty: expected a kind or a glob such as "video.*"'


def _filled(items: tuple[Any, ...]) -> str | None:
    return None if items else "is empty: expected at least one"


def _host(name: str) -> str | None:
    # No wildcard: any name that a stranger points at this machine would pass.
    if _HOST_NAME.fullmatch(name) or _is_ipv6(name.removeprefix("[").removesuffix("]")):
        return None
    return f'expected a host such as "relay.example", without port, found {describe(name)}'


def _is_ipv6(text: str) -> bool:
    try:
        IPv6Address(text)
    except ValueError:
        return False
    return True


def _file(path: str) -> str | None:
    if not path.strip() or "\0" in path:
        return "is empty: expected a path"
    if path.startswith(":") or path.lower().startswith("file:"):
        return f"is not a file on disk: expected a path, found {describe(path)}"
    if path.endswith(("/", "/.", "/..")) or path in {".", ".."}:
        return "is a folder: expected the path of a file in it"
    return None


def _schema(name: str) -> str | None:
    if _SCHEMA.fullmatch(name) is None:
        return "expected 1 to 63 of letters, digits, _, - and blanks, starting with a letter or _"
    if name.lower().startswith("pg_"):
        return "is reserved by PostgreSQL: expected a name that does not begin with pg_"
    return None


def _written(value: Any) -> str:
    """Format a value as in the config, in the largest unit that divides it."""
    for kind, units in _UNITS.items():
        if isinstance(value, kind):
            unit, factor = next((pair for pair in units if value % pair[1] == 0 < value), units[-1])
            return f"{int(value) // factor}{unit}"
    return describe(value)


_label = _matching(LABEL, "1 to 63 of a-z, 0-9, - and _, starting with a letter or digit")

# Below the sender's timeout of 10 s, so that the relay ends slow requests with a response.
_REQUEST_TIMEOUT = _between(Duration(1), Duration(9_999), "1ms to less than 10s")

RULES: dict[str, Callable[[Any], str | None]] = {
    "server.max_body": _size("1KiB", "64MiB"),
    "server.body_timeout": _REQUEST_TIMEOUT,
    "server.ack_timeout": _REQUEST_TIMEOUT,
    "server.drain_timeout": _duration("0s", "10m"),
    "store.path": _file,
    "store.payload_retention": _duration("0s", "3650d"),
    "store.dedupe_retention": _duration("1m", "3650d"),
    "store.min_free": _size("0B", "1024GiB"),
    "store.schema": _schema,
    "store.pool_size": _between(8, 64, "8 to 64"),
    "admin.token": _token,
    "admin.viewer_token": _token,
    "admin.allowed_hosts": _filled,
    "admin.allowed_hosts[]": _host,
    "outbound.proxy_url": proxies.fault_of_url,
    "outbound.no_proxy": proxies.fault_of_exceptions,
    "source[].name": _source_name,
    "source[].path": _source_path,
    "source[].secrets": _filled,
    "source[].secrets[]": weakness,
    "source[].secrets[].secret": weakness,
    "source[].secrets[].label": _label,
    "source[].tolerance": _duration("1s", "1d"),
    "source[].signature_header": _matching(_HEADER, 'a header name such as "Service-Signature"'),
    "source[].api.base_url": _api_url,
    "source[].api.key": _token,
    "source[].api.endpoint": _api_id,
    "source[].api.give_up_after": _duration("100ms", "1d"),
    "sink[].name": _label,
    "sink[].events": _filled,
    "sink[].events[]": _glob,
    "sink[].sources": _filled,
    "sink[].concurrency": _between(1, 256, "1 to 256"),
    "sink[].rate": _between(Rate.parse("1/h"), Rate.parse("10000/s"), "1/h to 10000/s"),
    "sink[].timeout": _duration("1ms", "10m"),
    "sink[].proxy_url": proxies.fault_of_url,
    "sink[].enrich_timeout": _duration("10ms", "10s"),
    "sink[].digest.over": _between(1, 100, "1 to 100"),
    "sink[].digest.every": _duration("1s", "10m"),
    "sink[].retry.first": _duration("1ms", "1d"),
    "sink[].retry.factor": _between(1, 100, "1 to 100"),
    "sink[].retry.max": _duration("1ms", "30d"),
    "sink[].retry.give_up_after": _duration("0s", "365d"),
}
"""Rules by key; a test checks that each names a field."""
