"""Inspection of the whole store."""

from relay.admin.operation import Nothing, Operation
from relay.admin.services import AdminServices
from relay.store.integrity import Inspection


async def check_store(admin: AdminServices, _: Nothing) -> Inspection:
    """Read the whole store while the relay runs; returns its contents and faults."""
    return await admin.store.inspections.inspect()


OPERATIONS = (Operation("GET", "/api/v1/store/check", check_store),)
