"""Commands that do the same as the page: of `relay`, and requests of the API."""

import shlex
from collections.abc import Sequence
from typing import Any

import orjson
from msgspec.structs import asdict

from relay.admin.api.parameters import Filter
from relay.admin.page.text.formats import iso
from relay.admin.page.visit import Visit

_OPTIONS = {"kind": "event"}
"""Names of the command's options that are not those of the API."""


def command(chosen: Filter, *words: str, bare: Sequence[str] = ()) -> str:
    """Return a command with the filter, or with `bare` if there is none."""
    return shlex.join(["relay", *words, *(_options(chosen) or bare)])


def _options(chosen: Filter) -> Sequence[str]:
    words = []
    for name, value in asdict(chosen).items():
        if value is not None:
            option = _OPTIONS.get(name, name.removesuffix("_ms")).replace("_", "-")
            text = iso(value) if name.endswith("_ms") else str(value)
            # A value that begins with a hyphen would be taken for an option.
            words += [f"--{option}={text}"] if text.startswith("-") else [f"--{option}", text]
    return words


def api_request(visit: Visit, path: str, body: Any = None, **query: object) -> str:
    """Return a command that calls the API; a body makes it a POST."""
    url = shlex.quote(visit.origin + visit.url(f"/api/v1{path}", **query))
    data = "" if body is None else f" -d {shlex.quote(orjson.dumps(body).decode())}"
    return f'curl -s {url}{data} -H "Authorization: Bearer $RELAY_ADMIN_TOKEN"'
