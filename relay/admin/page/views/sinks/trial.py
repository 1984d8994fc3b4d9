"""A trial of an event on a sink: whether its route takes it, and what would be sent."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
from starlette.exceptions import HTTPException

from relay.admin.api.events import Listing, list_events
from relay.admin.api.parameters import Number, Text, require_known
from relay.admin.page.forms import FORM_MAX
from relay.admin.page.text.json_text import MessagePart, parts_of
from relay.admin.page.view import PageView
from relay.admin.page.views.sinks.sink import settings_named
from relay.admin.page.visit import Context, PageVisit
from relay.core import authentication
from relay.core.errors import RelayError
from relay.core.event import WEBHOOK_TEST, Event
from relay.core.routing import Route, Verdict
from relay.core.sink import SinkSettings
from relay.outbound.watched import NOT_SHOWN

BOX_MAX = FORM_MAX // 4
"""Bytes of a stored body in the box; a form can hardly hold more, once it is encoded."""


class TrialEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A sink, and the number of a stored event; 0 is the newest."""

    name: Text
    seq: Number | None = None


class Pasted(msgspec.Struct, frozen=True, kw_only=True):
    """A sink, and an event as if a source had received it."""

    name: Text
    source: Text
    body: str = ""


class Rule(NamedTuple):
    """One key of a route, and whether it alone lets the event through."""

    key: str
    setting: str
    verdict: Verdict


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """What would happen to an event."""

    event: Event
    verdict: Verdict
    rules: Sequence[Rule]
    others: Sequence[Verdict]
    """Verdicts of the other sinks."""
    message: Sequence[MessagePart]
    failure: str | None
    """Why there is no message."""
    remark: str = ""
    """What the message lacks here."""


async def read_stored(visit: PageVisit, form: TrialEvent) -> Context:
    """Show the box, and try a stored event if one is named."""
    sink = _configured(visit, form.name)
    if form.seq is None:
        return _context(visit, sink)
    seq = form.seq or await _newest(visit)
    history = await visit.admin.store.events.history(seq)
    if history is None:
        raise HTTPException(404, f"There is no event {seq}.")
    event, source = history.intact_event(), history.event.source
    if event is None:
        problem = f"The stored body of event {seq} is damaged, so it is not tried."
        if history.body is None:
            problem = f"The body of event {seq} is gone: its retention is over, or it was erased."
        return _context(visit, sink, source=source, problem=problem)
    shown = event.body.decode(errors="replace") if len(event.body) <= BOX_MAX else ""
    trial = _try(visit, sink, event)
    return _context(visit, sink, source=source, body=shown, seq=seq, trial=trial)


async def read_pasted(visit: PageVisit, pasted: Pasted) -> Context:
    """Try a pasted event."""
    sink = _configured(visit, pasted.name)
    await require_known(
        "source",
        pasted.source,
        visit.admin.sources,
        visit.admin.store.events.sources,
    )
    kept = {"source": pasted.source, "body": pasted.body}
    if not pasted.body.strip():
        return _context(visit, sink, **kept, problem="Nothing was pasted: the box is empty.")
    content = authentication.read(
        pasted.source, b"", pasted.body.strip().encode(errors="replace"), now_ms=visit.now_ms
    )
    if not isinstance(content, Event):
        problem = f"This is no event: {content.reason}. The relay would keep it as unreadable."
        return _context(visit, sink, **kept, problem=problem)
    return _context(visit, sink, **kept, trial=_try(visit, sink, content))


def _configured(visit: PageVisit, name: str) -> SinkSettings:
    sink = settings_named(visit, name)
    if sink is None:
        raise HTTPException(404, f"There is no sink {name} in the config.")
    return sink


async def _newest(visit: PageVisit) -> int:
    events = (await visit.run(list_events, Listing(limit=1))).events
    if not events:
        raise HTTPException(404, "No event is stored yet. Paste one, or run relay send.")
    return int(events[0].seq)


def _context(visit: PageVisit, sink: SinkSettings, **values: Any) -> Context:
    context = {"source": None, "body": "", "problem": None, "trial": None, "seq": None, **values}
    return {
        "name": sink.name,
        "sources": visit.admin.sources,
        **context,
    }


def _try(visit: PageVisit, sink: SinkSettings, event: Event) -> Trial:
    verdicts = [route.evaluate(event) for route in visit.admin.routes]
    message, failure = _message(visit, sink.name, event)
    return Trial(
        event=event,
        verdict=next(each for each in verdicts if each.sink == sink.name),
        rules=list(_rules(sink, event)),
        others=[each for each in verdicts if each.sink != sink.name],
        message=message,
        failure=failure,
        remark=NOT_SHOWN if sink.enriches(event) else "",
    )


def _rules(sink: SinkSettings, event: Event) -> Iterator[Rule]:
    every = ("*", WEBHOOK_TEST)
    of_kind = Route(sink.name, events=sink.events).evaluate(event)
    yield Rule("events", ", ".join(sink.events), of_kind)
    if sink.sources is not None:
        of_source = Route(sink.name, events=every, sources=sink.sources).evaluate(event)
        yield Rule("sources", ", ".join(sink.sources), of_source)
    if sink.when is not None:
        of_body = Route(sink.name, events=every, when=sink.when).evaluate(event)
        yield Rule("when", sink.when, of_body)


def _message(visit: PageVisit, name: str, event: Event) -> tuple[Sequence[MessagePart], str | None]:
    try:
        rendered = visit.admin.sinks.render(name, event)
    except KeyError:  # a reload has removed it meanwhile
        return (), "the sink does not run"
    except RelayError as error:
        return (), str(error)
    return parts_of(rendered), None


ROUTES = tuple(
    PageView(
        "/sinks/{name}/try",
        read,
        "Try an event",
        "sink_trial.html",
        admin_only=True,
        is_form=is_form,
    )
    for read, is_form in ((read_stored, False), (read_pasted, True))
)
