"""The order, gaps and words of an event's timeline."""

from typing import Any

from relay.admin.page.views.events.steps import DeliveryTimeline
from relay.admin.page.views.events.timeline import Timeline, timeline
from relay.core.delivery import Status
from relay.core.sink_status import Flow, SinkStatus
from relay.store.events import AttemptRecord, DeliveryRecord, EventRecord, Queued
from relay.store.replays import Mark, Replay
from relay.store.selection import Selection
from relay.store.sink_states import StateSpan

START_MS = 1_700_000_000_000


def attempt(at_ms: int, result: str = "retry", *, sink: str = "crm", **more: Any) -> AttemptRecord:
    given = {"duration_ms": 100, "status": None, "reason": "", "answer": "", "replay": None}
    return AttemptRecord(sink=sink, started_ms=START_MS + at_ms, result=result, **{**given, **more})


def delivery(status: Status, *, sink: str = "crm", **more: Any) -> DeliveryRecord:
    given = {"attempts": 1, "due_ms": None, "settled_ms": None, "reason": None, "replay": None}
    return DeliveryRecord(sink=sink, status=status, **{**given, **more})


def laid_out(
    *attempts: AttemptRecord, deliveries: list[DeliveryRecord] | None = None, **more: Any
) -> Timeline:
    event = EventRecord(
        seq=1,
        source="main",
        id="a",
        kind="lead.captured",
        created_at=None,
        received_ms=START_MS,
        bytes=10,
        deliveries=deliveries or [],
    )
    given = {"now_ms": START_MS + 60_000, **more}
    return timeline(DeliveryTimeline(event=event, attempts=attempts, **given))


def waiting(
    state: Any,
    *,
    due_in_ms: int | None = 5000,
    next_in_ms: int | None = None,
    queued: Queued | None = None,
) -> Any:
    """The last step of an event whose only delivery is pending."""
    now_ms = START_MS + 60_000
    due_ms = None if due_in_ms is None else now_ms + due_in_ms
    status = SinkStatus(
        name="crm",
        type="http",
        state=state,
        next_try_ms=None if next_in_ms is None else now_ms + next_in_ms,
        flow=Flow(in_per_minute=0, out_per_minute=30, direction="draining"),
    )
    steps = laid_out(
        deliveries=[delivery(Status.PENDING, due_ms=due_ms)],
        statuses={"crm": status},
        queue={} if queued is None else {"crm": queued},
        give_up_ms={"crm": 3 * 86_400_000},
    ).steps
    at_ms = steps[-1].at_ms
    return None if at_ms is None else at_ms - now_ms, steps[-1].detail


def test_gaps_are_counted_from_the_end_of_the_longest_attempt_and_name_the_sink_s_state() -> None:
    states = {
        "crm": [StateSpan(state="parked", from_ms=START_MS + 20_000, to_ms=START_MS + 30_000)]
    }
    steps = laid_out(
        attempt(100, duration_ms=10_000),
        attempt(200, "delivered", sink="sales"),
        attempt(261_100, "parked", reason="401", status=401),
        states=states,
    ).steps
    assert [step.gap for step in steps] == [
        "",
        "",
        "",
        "4 min 11 s later; crm was parked in between",
    ]


def test_tries_are_counted_for_each_sink() -> None:
    steps = laid_out(
        attempt(1), attempt(2, sink="sales"), attempt(3), attempt(4, "delivered")
    ).steps
    assert [(step.sink, step.text) for step in steps[1:]] == [
        ("crm", "try 1 failed"),
        ("sales", "try 1 failed"),
        ("crm", "try 2 failed"),
        ("crm", "delivered"),
    ]
    assert steps[-1].detail == "at try 3, in 100 ms"


def test_a_full_bar_is_the_least_round_time_that_holds_the_longest_attempt() -> None:
    scales = [laid_out(attempt(1, duration_ms=ms)).scale_ms for ms in (0, 1001, 9000, 7_200_000)]
    assert scales == [1000, 5000, 10_000, 7_200_000]


def test_the_end_of_a_delivery_is_a_step_where_no_attempt_explains_it() -> None:
    steps = laid_out(
        attempt(10, "dead", reason="refused"),
        deliveries=[
            delivery(Status.DEAD),
            delivery(
                Status.DEAD, sink="sales", settled_ms=START_MS, reason="when failed: TypeError"
            ),
            delivery(Status.DISCARDED, sink="mail", settled_ms=START_MS + 90),
        ],
    ).steps
    assert [(step.sink, step.text, step.detail) for step in steps[1:]] == [
        ("sales", "became a dead letter", "when failed: TypeError"),
        ("crm", "became a dead letter", "refused, in 100 ms"),
        ("mail", "discarded", ""),
    ]


def test_a_replay_is_a_step_before_its_attempts() -> None:
    replay = Replay(
        id=7,
        created_ms=START_MS + 5000,
        selection=Selection(),
        state="done",
        total=1,
        opened=1,
        cursor=1,
        until=Mark(1, 1),
        ended_ms=None,
    )
    steps = laid_out(
        attempt(10, "delivered"), attempt(6000, "delivered", replay=7), replays=[replay]
    ).steps
    assert [step.text for step in steps] == ["Received", "delivered", "Replay 7", "delivered"]
    assert steps[2].detail == "opened it again for crm"


def test_the_next_try_says_when_it_comes_or_what_it_waits_for() -> None:
    assert waiting("active") == (5000, "tried until 3 d after its first failure")
    assert waiting("paused") == (None, "waits: the sink is paused")
    assert waiting("parked", due_in_ms=-1, next_in_ms=700) == (700, "waits: the sink is parked")
    assert waiting("throttled", due_in_ms=-1) == (0, "waits: the sink is throttled")
    assert waiting("active", due_in_ms=None)[1].startswith("waits for an earlier event")
    behind = Queued("crm", 30_309, is_more=False, of_key=3)
    assert waiting("active", due_in_ms=-1, queued=behind) == (
        None,
        "waits behind 30,309, about 17 h",
    )
    assert waiting("parked", due_in_ms=-1, next_in_ms=38_000, queued=behind) == (
        None,
        "waits: the sink is parked, tried next in 38 s; behind 30,309, about 17 h",
    )
    assert waiting("active", queued=behind)[0] == 5000
    assert waiting("active", due_in_ms=None, queued=behind)[1] == (
        "waits for 3 earlier events of the same ordering key"
    )
    (step,) = (
        step for step in laid_out(deliveries=[delivery(Status.PENDING)]).steps if step.to_come
    )
    assert step.detail == "waits: the config has no such sink"
