"""Checks of the senders' APIs for `relay check-config --connect`; they change nothing."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from relay.cli.output import safe
from relay.cli.subscription import WantedKinds, listed, wanted
from relay.config import Config
from relay.core.api_settings import ApiSettings
from relay.video_service.api.errors import ServiceApiError

if TYPE_CHECKING:
    from relay.video_service.api.client import Api

TIMEOUT_S = 20.0
"""For all requests of one check, those included that a limit makes wait."""

_OF_KEY = frozenset(
    {
        "key refused",
        "cannot connect",
        "no answer",
        "connection closed",
        "TLS failed",
        "proxy failed",
    }
)
"""Failures that concern the API as a whole, so that another request would fail as well."""


class ApiCheck(msgspec.Struct, frozen=True):
    """The result for the API of one source."""

    source: str
    ok: bool
    text: str


class _Finding(msgspec.Struct, frozen=True):
    ok: bool
    text: str


def check(config: Config) -> Sequence[ApiCheck]:
    """Check all APIs at once."""
    return asyncio.run(_check_all(config))


def line(result: ApiCheck) -> str:
    return f"  source {result.source} (API): {result.text}"


async def _check_all(config: Config) -> Sequence[ApiCheck]:
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(_check(source.name, source.api, wanted(config, source.name)))
            for source in config.sources
            if source.api is not None
        ]
    return tuple(task.result() for task in tasks)


async def _check(source: str, settings: ApiSettings, wants: WantedKinds) -> ApiCheck:
    # Imported here, because most configs have no API.
    from relay.video_service.api.client import Api  # noqa: PLC0415

    try:
        async with asyncio.timeout(TIMEOUT_S), Api(settings) as api:
            findings = [await _key(api), await _endpoint(api, settings.endpoint, wants)]
    except TimeoutError:
        findings = [_Finding(ok=False, text=f"no result within {TIMEOUT_S:g} s")]
    except ServiceApiError as error:
        findings = [_Finding(ok=False, text=error.reason)]
    text = "; ".join(finding.text for finding in findings)
    return ApiCheck(source, all(finding.ok for finding in findings), safe(text))


async def _key(api: "Api") -> _Finding:
    """Try to read analytics; raises ServiceApiError where no other request would succeed either."""
    try:
        await api.check_analytics()
    except ServiceApiError as error:
        if error.reason in _OF_KEY:
            raise
        return _Finding(ok=False, text=f"analytics: {error.reason}")
    return _Finding(ok=True, text="the key works and may read analytics")


async def _endpoint(api: "Api", endpoint: str | None, wants: WantedKinds) -> _Finding:
    if endpoint is None:
        return _Finding(ok=True, text="no endpoint is set: relay endpoint register")
    try:
        webhook = await api.webhook(endpoint)
    except ServiceApiError as error:
        return _Finding(ok=False, text=f"endpoint {endpoint}: {error.reason}{_advice(error)}")
    receives = f"endpoint {endpoint} receives {listed(webhook.events)}"
    if lacking := wants.lacking(webhook):
        return _Finding(
            ok=False,
            text=f"{receives}, and the sinks also want {', '.join(lacking)}: "
            "relay endpoint events --from-sinks",
        )
    return _Finding(ok=True, text=receives)


def _advice(error: ServiceApiError) -> str:
    return ", which needs a key with the access Admin" if error.reason == "no access" else ""
