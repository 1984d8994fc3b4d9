"""Audit of operators' changes: a row in the store and a log line each."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Self

import msgspec
from msgspec.structs import fields
from starlette.requests import Request

from relay.admin.problem import response_to
from relay.core.clock import Clock
from relay.core.errors import StoreError
from relay.store.audit import Audit, Change
from relay.telemetry import log
from relay.telemetry.activity_stream import ActivityStream

ACTOR = "admin"
"""Label of the token that may change something."""


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """The origin of a change."""

    address: str | None
    """Network address; None if unknown."""
    via: str | None
    """User-Agent, or `page`."""

    @classmethod
    def of(cls, request: Request) -> Self:
        """Describe the sender of an API request."""
        address = None if request.client is None else request.client.host
        return cls(address=address, via=request.headers.get("user-agent"))


class AuditEntry(msgspec.Struct):
    """The result of a change, filled in where the change is made."""

    result: Mapping[str, Any] = msgspec.field(default_factory=dict)


class Auditor(msgspec.Struct, eq=False, kw_only=True):
    """Records changes; one that cannot be recorded is still made, and logged."""

    audit: Audit
    activity: ActivityStream
    clock: Clock

    @asynccontextmanager
    async def recorded(self, change: Change) -> AsyncIterator[AuditEntry]:
        """Record the change that the block makes, whether it succeeds or raises.

        The row is written before the block, so that a crash in it leaves an unfinished row.
        """
        change, entry = self.audit.pseudonymized(change), AuditEntry()
        number = await self._begin(change)
        self.activity.count("change")
        try:
            yield entry
        except Exception as error:
            await self._end(change, number, entry, response_to(error).status_code)
            raise
        await self._end(change, number, entry, 200)

    async def _begin(self, change: Change) -> int | None:
        try:
            return await self.audit.begin(change, now_ms=self.clock.now_ms())
        except StoreError:
            return None

    async def _end(
        self, change: Change, number: int | None, entry: AuditEntry, status: int
    ) -> None:
        now_ms = self.clock.now_ms()
        try:
            if number is None:
                # An erasure may have freed the space that was missing before.
                number = await self.audit.begin(change, now_ms=now_ms)
            await self.audit.end(number, status=status, result=entry.result, now_ms=now_ms)
        except StoreError as error:
            log.get().error("audit.failed", operation=change.operation, reason=str(error))
        self.activity.count("change")
        log.get().info(
            "change.done" if status == 200 else "change.refused",
            operation=change.operation,
            target=change.target,
            asked=_text(change.asked),
            counts=_text(entry.result),
            code=status,
            actor=change.actor,
            client=change.address,
        )


def change_of(operation: str, client: Caller, arguments: Mapping[str, Any], path: str) -> Change:
    """Describe a change by its validated arguments; those in the path name its target."""
    named = [name for name in arguments if f"{{{name}" in path]
    return Change(
        operation=operation,
        target=" ".join(str(arguments[name]) for name in named) or None,
        asked={
            name: value
            for name, value in arguments.items()
            if value is not None and value is not False and name not in named
        },
        actor=ACTOR,
        address=client.address,
        via=client.via,
    )


def counts(response: object) -> dict[str, int]:
    """Return the numbers in a response and the lengths of its lists, without texts and times."""
    numbers = {}
    for name, value in values_of(response).items():
        if isinstance(value, list | tuple):
            numbers[name] = len(value)
        elif isinstance(value, int) and not name.endswith("_ms"):
            numbers[name] = value
    return numbers


def values_of(*records: object) -> dict[str, Any]:
    """Return the fields of structs with their values."""
    return {
        column.name: getattr(record, column.name)
        for record in records
        for column in fields(record)  # type: ignore[arg-type]
    }


def _text(values: Mapping[str, Any]) -> str | None:
    return " ".join(f"{name}={value}" for name, value in values.items()) or None
