"""Four destinations, and what each relay's config says of them."""

from random import Random

from relay.core.event import LEAD_CAPTURED
from tests.guarantees.cluster.load import KINDS
from tests.guarantees.destinations import MEMBER, Arrival, Destination, Mood

CONCURRENCY = 8
IN_FLIGHT_MAX = 5 * CONCURRENCY
"""Of one sink: those that are being sent, and four unsettled outcomes for each slot."""

ORDERED = "ordered"
LEADS = "leads"
TAKES = {"steady": set(KINDS), ORDERED: set(KINDS), "flaky": set(KINDS), LEADS: {LEAD_CAPTURED}}

_RETRY = 'retry = { first = "50ms", max = "500ms" }'
_SETTINGS = {
    ORDERED: f'ordered = "video"\n{_RETRY}',
    LEADS: 'events = ["lead.captured"]\n'
    'retry = { first = "50ms", max = "100ms", give_up_after = "150ms" }',
}
_FAILS = {"flaky": 0.1, ORDERED: 0.05, LEADS: 0.3}
"""Share of requests that are answered 500."""


class Weather(Destination):
    """Takes some time for an answer, and fails now and then."""

    def __init__(self, name: str, *, random: Random, slowest_s: float = 0.04) -> None:
        super().__init__(name)
        self.slowest_s = slowest_s
        self._random = random

    def mood_for(self, arrival: Arrival) -> Mood:
        fails = self._random.random() < _FAILS.get(self.name, 0)
        return Mood(500 if fails else 200, delay_s=self._random.uniform(0, self.slowest_s))


def tables(destinations: list[Weather]) -> str:
    return "\n".join(
        f'[[sink]]\nname = "{destination.name}"\ntype = "http"\nurl = "{destination.url}"\n'
        f'headers = {{ {MEMBER} = "env:MEMBER" }}\nconcurrency = {CONCURRENCY}\n'
        f'timeout = "5s"\n{_SETTINGS.get(destination.name, _RETRY)}\n'
        for destination in destinations
    )
