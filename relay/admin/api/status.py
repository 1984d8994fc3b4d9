"""Status of the whole relay; short, because each group of operations has a file."""

from collections.abc import Sequence

from msgspec.structs import asdict

from relay.admin.facts import Facts, gather
from relay.admin.operation import Nothing, Operation
from relay.admin.services import AdminServices
from relay.admin.verdict import Finding, is_well, problems


class StatusReport(Facts, frozen=True, kw_only=True):
    """The verdict with its facts; times are milliseconds since the epoch."""

    well: bool
    """Whether no problem needs an operator."""
    problems: Sequence[Finding]
    """Most severe first."""


async def show_status(admin: AdminServices, _: Nothing) -> StatusReport:
    """Problems that need an operator, and the state of store, sources and sinks."""
    facts = await gather(admin)
    findings = problems(facts)
    return StatusReport(**asdict(facts), well=is_well(findings), problems=findings)


OPERATIONS = (Operation("GET", "/api/v1/status", show_status),)
