"""The runbook, with an anchor for each alert."""

from relay.admin.operation import Nothing
from relay.admin.page.view import View
from relay.admin.page.visit import Context, Visit


async def read_runbook(_: Visit, __: Nothing) -> Context:
    """The text stands in the template."""
    return {}


VIEW = View(path="/runbook", title="Runbook", template="runbook.html", read=read_runbook)
