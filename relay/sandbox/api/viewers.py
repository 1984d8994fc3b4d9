"""The controls of viewers under `/sandbox/`: make one do one thing, and read the truth."""

from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from relay.sandbox.analytics.records import Record
from relay.sandbox.api.controls import PREFIX
from relay.sandbox.api.operation import Body, Control, Parameters
from relay.sandbox.errors import Refusal
from relay.sandbox.services import Services
from relay.sandbox.truth import Truth, truth
from relay.sandbox.viewing import Visit

Address = Annotated[str, Meta(min_length=3, max_length=320, pattern="@")]
Text = Annotated[str, Meta(min_length=1, max_length=500)]
Position = Annotated[float, Meta(ge=0)]


class Watch(Body):
    """A part of a video, all of it by default; without an address the viewer is anonymous."""

    video: str
    email: Address | None = None
    name: Text | None = None
    from_s: Position = msgspec.field(name="from", default=0.0)
    to_s: Position | None = msgspec.field(name="to", default=None)


class Form(Body, kw_only=True):
    """An email form: in an open view, or in one of its own that ends at once."""

    video: str | None = None
    session: str | None = None
    email: Address
    name: Text
    fields: dict[str, Any] = msgspec.field(default_factory=dict)


class ViewStarted(Record):
    """The view that has begun."""

    session: str


class FormSubmitted(Record):
    """The lead that was captured, and the view that it came from."""

    lead: str
    session: str


def watch(services: Services, _: Parameters, body: Watch) -> ViewStarted:
    """Let a viewer watch a part of a video, in a view that ends with the part."""
    viewing = services.viewing
    duration_s = services.library.get(body.video).duration_s
    end_s = duration_s if body.to_s is None else body.to_s
    if not body.from_s <= end_s <= duration_s:
        raise Refusal(422, f"to: expected a position after `from`, up to {duration_s:g} s.")
    session = viewing.begin(body.video, Visit(email=body.email, name=body.name))
    viewing.watch(session.id, body.from_s, end_s, then=partial(viewing.end, session.id))
    return ViewStarted(session=session.id)


def submit(services: Services, _: Parameters, body: Form) -> FormSubmitted:
    """Let a viewer submit an email form."""
    viewing = services.viewing
    session_id = body.session or viewing.begin(body.video or "", Visit()).id
    lead = viewing.submit(session_id, email=body.email, name=body.name, fields=body.fields)
    if body.session is None:
        viewing.end(session_id)
    return FormSubmitted(lead=lead.id, session=session_id)


def read_truth(services: Services, _: Parameters) -> Truth:
    """Read all milestones and leads, those of anonymous views too."""
    return truth(services.workspace)


OPERATIONS = (
    Control("POST", f"{PREFIX}/viewers/watch", watch, status=201),
    Control("POST", f"{PREFIX}/viewers/lead", submit, status=201),
    Control("GET", f"{PREFIX}/truth", read_truth),
)
