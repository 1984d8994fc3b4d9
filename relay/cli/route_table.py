"""The table that ends `relay check-config`: which kinds of events reach which sink, and why not."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from relay.cli import output
from relay.config import Config
from relay.config.sample_routes import Reach, reach, unreached
from relay.core.event import KINDS

MANY_KINDS = 3
"""From this many on, the kinds of a row are listed, rather than those that it lacks."""

Routes = Mapping[str, Sequence[Reach]]
"""By sink."""


def routes(config: Config) -> Routes:
    """Evaluate the routes of all sinks on samples, each as of the first source that it takes."""
    return {
        sink.name: reach(route, (sink.sources or (config.sources[0].name,))[0])
        for sink, route in zip(config.sinks, config.routes, strict=True)
    }


def notes(config: Config, routes: Routes) -> tuple[str, ...]:
    """Return notes about sinks without a matching sample, unless a finding explains them."""
    explained = {fault.path.rpartition(" ")[2] for fault in (*config.mistakes, *config.warnings)}
    return tuple(
        note
        for sink, reaches in routes.items()
        if explained.isdisjoint({f"({sink}).when", f"({sink}).events[0]"})
        for note in unreached(sink, reaches)
    )


def document(routes: Routes) -> list[dict[str, object]]:
    return [{"sink": sink, "kinds": reaches} for sink, reaches in routes.items()]


def lines(routes: Routes) -> Iterator[str]:
    """Yield the table; kinds with one result are one row."""
    if not routes:
        return
    yield ""
    yield "Which events reach which sink, by samples of each kind:"
    yield ""
    rows = (row for sink, reaches in routes.items() for row in _rows(sink, reaches))
    yield from output.table(rows, empty="")


def _rows(sink: str, reaches: Iterable[Reach]) -> Iterator[dict[str, object]]:
    groups: dict[tuple[str, str], list[str]] = {}
    for each in reaches:
        groups.setdefault((_taken(each), _why(each)), []).append(each.event)
    for (taken, why), kinds in groups.items():
        yield {"SINK": sink, "EVENTS": _kinds(kinds), "TAKES": taken, "WHY": why}


def _taken(each: Reach) -> str:
    taken = {0: "none", each.samples: "all"}.get(each.taken, f"{each.taken} of {each.samples}")
    return f"{taken}, fails on {each.failed}" if each.failed else taken


def _why(each: Reach) -> str:
    if each.failed:
        return f"{each.why}: a dead letter"
    # The config says the rule itself, and the row its kind.
    return each.why.removeprefix(f"{each.event} ").partition(":")[0]


def _kinds(kinds: Sequence[str]) -> str:
    others = [kind for kind in KINDS if kind not in kinds]
    if len(others) < MANY_KINDS:
        return f"all but {', '.join(others)}" if others else "all"
    return ", ".join(kinds)
