"""Which kinds of events reach which sink, shown by samples of each kind."""

from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from relay.core.event import KINDS
from relay.core.routing import Route
from relay.core.sample_events import series


class Reach(msgspec.Struct, frozen=True):
    """The outcome of a route for the samples of one kind."""

    event: str
    samples: int
    taken: int
    failed: int
    """The rule fails on these, and they become dead letters."""
    why: str
    """The reason of the first that is not taken, else of all."""


def reach(route: Route, source: str) -> tuple[Reach, ...]:
    """Evaluate a route on samples of every kind, as if this source had received them."""
    return tuple(_of_kind(route, kind, source) for kind in KINDS)


def unreached(sink: str, reaches: Sequence[Reach]) -> Iterator[str]:
    """Yield a note for a sink that takes no sample of any kind."""
    if any(each.taken for each in reaches):
        return
    if any(each.why.startswith("when") for each in reaches):
        yield (
            f"sink {sink}: no sample matches its `when`; this is right only if the rule is about "
            "form fields, or about values that samples do not have"
        )
    else:
        yield f"sink {sink}: no kind of event reaches it"


def _of_kind(route: Route, kind: str, source: str) -> Reach:
    verdicts = [route.evaluate(event) for event in series(kind, source=source)]
    count = Counter(verdict.outcome for verdict in verdicts)
    order = {"fails": 0, "declines": 1, "takes": 2}
    why = min(verdicts, key=lambda verdict: order[verdict.outcome]).why
    return Reach(kind, len(verdicts), count["takes"], count["fails"], why)
