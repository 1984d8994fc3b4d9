"""The content of one event, and each route's verdict on it, for those who may see them."""

from collections.abc import Sequence

import msgspec
from starlette.exceptions import HTTPException

from relay.admin.page.text.json_text import MessagePart, Shown, parts_of, plain, pretty
from relay.admin.page.visit import PageVisit
from relay.core.delivery import Status
from relay.core.errors import RelayError
from relay.core.event import Engagement, Event, engagement
from relay.core.routing import Route
from relay.outbound.watched import NOT_SHOWN
from relay.store.events import DeliveryRecord, History

COPIED_MAX = 16 * 1024
"""Characters of a text with a button that copies it, because the button holds it once more."""

AS = "as:"


class RouteRow(msgspec.Struct, frozen=True, kw_only=True):
    """A sink, with today's verdict on the event and the delivery that it has."""

    sink: str
    outcome: str
    """`unknown` without a usable body, `removed` for a sink that is not configured any more."""
    why: str = ""
    status: Status | None = None

    @property
    def takes(self) -> bool:
        return self.outcome in ("takes", "fails")

    @property
    def is_pending(self) -> bool:
        return self.status is Status.PENDING

    @property
    def is_missed(self) -> bool:
        return self.takes and self.status is None


class BodyView(msgspec.Struct, frozen=True, kw_only=True):
    """A body in one of its forms; `fault` says why it cannot be shown."""

    form: str
    text: Shown | None = None
    parts: Sequence[MessagePart] = ()
    fault: str = ""
    remark: str = ""
    """What a sink's message lacks here."""
    is_json: bool = True

    @property
    def copied(self) -> str | None:
        if self.text is None or not self.text.is_whole or len(self.text.text) > COPIED_MAX:
            return None
        return self.text.text


class EventContent(msgspec.Struct, frozen=True, kw_only=True):
    """The inside of an event; a viewer gets the routes only, without reasons."""

    routes: Sequence[RouteRow]
    sinks: Sequence[str] = ()
    """Sinks whose message can be shown."""
    body: BodyView | None = None
    headers: Sequence[tuple[str, str]] = ()
    about: Engagement = msgspec.field(default_factory=lambda: Engagement(None, None, None, None))
    is_erased: bool = False


def content(visit: PageVisit, history: History, form: str) -> EventContent:
    """Read and route a stored event; takes milliseconds for a large one. Raises HTTPException."""
    routes, event = visit.admin.routes, history.intact_event()
    rows = _rows(routes, event, history.event.deliveries, with_reasons=visit.may_change)
    sinks = [route.sink for route in routes]
    if form.startswith(AS) and form.removeprefix(AS) not in sinks:
        raise HTTPException(404, f"There is no sink {form.removeprefix(AS)} in the config.")
    is_erased = any(delivery.reason == "erased" for delivery in history.event.deliveries)
    if not visit.may_change:
        return EventContent(routes=rows, is_erased=is_erased)
    return EventContent(
        routes=rows,
        sinks=sinks,
        body=_body(visit, history, event, form),
        headers=_headers(history.headers),
        about=Engagement(None, None, None, None)
        if event is None
        else engagement(event.kind, event.document()),
        is_erased=is_erased,
    )


def _rows(
    routes: Sequence[Route],
    event: Event | None,
    deliveries: Sequence[DeliveryRecord],
    *,
    with_reasons: bool,
) -> list[RouteRow]:
    states = {delivery.sink: delivery.status for delivery in deliveries}
    rows = []
    for route in routes:
        status = states.pop(route.sink, None)
        if event is None:
            rows.append(RouteRow(sink=route.sink, outcome="unknown", status=status))
        else:
            verdict = route.evaluate(event)
            why = verdict.why if with_reasons else ""
            rows.append(RouteRow(sink=route.sink, outcome=verdict.outcome, why=why, status=status))
    removed = [RouteRow(sink=sink, outcome="removed", status=states[sink]) for sink in states]
    return rows + removed


def _headers(lines: bytes | None) -> list[tuple[str, str]]:
    pairs = []
    for line in (lines or b"").decode("latin-1").split("\n"):
        name, _, value = line.partition(":")
        if name:
            pairs.append((name, value.strip()))
    return pairs


def _body(visit: PageVisit, history: History, event: Event | None, form: str) -> BodyView | None:
    if history.body is None:
        return None
    text = history.body.decode(errors="replace")
    if form == "raw":
        return BodyView(form=form, text=plain(text))
    if form.startswith(AS):
        return _message(visit, event, form)
    shown = pretty(text)
    return BodyView(form=form, text=shown or plain(text), is_json=shown is not None)


def _message(visit: PageVisit, event: Event | None, form: str) -> BodyView:
    """Render the message that a sink gets."""
    if event is None:
        return BodyView(form=form, fault="The stored body is damaged, so no sink gets it.")
    try:
        message = visit.admin.sinks.render(form.removeprefix(AS), event)
    except KeyError:
        return BodyView(form=form, fault="The sink is not running.")
    except RelayError as error:
        return BodyView(form=form, fault=f"The sink cannot make a message of it: {error}.")
    return BodyView(form=form, parts=parts_of(message), remark=_remark(visit, event, form))


def _remark(visit: PageVisit, event: Event, form: str) -> str:
    sinks = {sink.name: sink for sink in visit.admin.config().sinks}
    return NOT_SHOWN if sinks[form.removeprefix(AS)].enriches(event) else ""
