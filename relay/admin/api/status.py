"""The relay as a whole, and the verdict on it."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

from relay.admin.facts import Facts, gather
from relay.admin.operation import Operation
from relay.admin.readiness import Readiness
from relay.admin.services import AdminServices
from relay.admin.verdict import Finding, is_well, problems


@dataclass(frozen=True, slots=True, kw_only=True)
class Status(Facts):
    """The verdict and what it rests on; times are milliseconds since the epoch."""

    well: bool
    """Whether no problem needs a person."""
    problems: Sequence[Finding]
    """The worst first."""


def operations(admin: AdminServices, readiness: Readiness) -> tuple[Operation, ...]:
    """What can be asked of the relay itself."""

    async def show_status(_: object) -> Status:
        facts = await gather(admin, readiness)
        found = problems(facts)
        known = {each.name: getattr(facts, each.name) for each in fields(Facts)}
        return Status(**known, well=is_well(found), problems=found)

    return (
        Operation(
            method="GET",
            path="/api/v1/status",
            summary="Whether anything needs a person, and how store, sources and sinks are doing.",
            handler=show_status,
            answer=Status,
        ),
    )
