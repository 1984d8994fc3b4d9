"""The verdict: every problem, with its severity and a next command that exists."""

from collections.abc import Mapping
from typing import Any

import click
import pytest
from msgspec.structs import replace

from relay.admin.facts import Facts, SinkFacts, SourceFacts, StoreFacts
from relay.admin.services import Reading
from relay.admin.verdict import is_well, problems
from relay.core.delivery_rules import Interval
from relay.core.retry import Refusals
from relay.core.sink_status import Flow, SinkStatus, State
from relay.store import StoreWarning
from relay.store.absences import Absence
from relay.store.ownership import Cluster, FreeSink, Member
from relay.store.quarantine import Rotation
from relay.telemetry.metrics.store import Disk
from relay.telemetry.traffic import SignatureRefusals, SourceTraffic
from tests.conftest import NOW_MS
from tests.deploy.test_runbook import parse

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
MIB = 1 << 20

STORE = StoreFacts(
    location="/var/lib/relay/relay.db",
    folder="/var/lib/relay",
    disk=Disk(store_bytes=MIB, free_bytes=4096 * MIB, min_free_bytes=256 * MIB, log_bytes=4 * MIB),
    clock_offset_s=0.0,
    unready=(),
    unready_since_ms=None,
    unread=None,
    alive_ms=NOW_MS - 5000,
    warnings=(),
    unclean=False,
    unreadable=0,
    unreadable_since_ms=None,
    unreadable_ms=None,
)
IN_DATABASE = replace(
    STORE,
    location="PostgreSQL at db, database relay, schema relay",
    folder=None,
    disk=Disk(store_bytes=MIB, free_bytes=None, min_free_bytes=None, log_bytes=None),
)
FULL = Disk(store_bytes=MIB, free_bytes=255 * MIB, min_free_bytes=256 * MIB, log_bytes=MIB)
FACTS = Facts(
    version="1.2.3",
    now_ms=NOW_MS,
    started_ms=NOW_MS - HOUR_MS,
    draining=False,
    downtime=None,
    unacknowledged=(),
    unacknowledged_loss_ms=0,
    sinks=(),
    sources=(),
    store=STORE,
    cluster=None,
    last_reload=None,
    refused_reloads=(),
)


def of_store(**changed: Any) -> Facts:
    return replace(FACTS, store=replace(STORE, **changed))


def of_sink(state: State | None = "active", *, ago_ms: int = 0, **changed: Any) -> Facts:
    condition = None if state is None else _condition(state, since_ms=NOW_MS - ago_ms)
    sink = SinkFacts(
        name="crm",
        condition=condition,
        pending=0,
        oldest_pending_ms=None,
        replaying_since_ms=None,
        dead=0,
        dead_since_ms=None,
        dead_reason=None,
    )
    return replace(FACTS, sinks=(replace(sink, **changed),))


def _condition(state: State, *, since_ms: int) -> SinkStatus:
    return SinkStatus(
        name="crm",
        type="http",
        state=state,
        since_ms=since_ms,
        in_flight=0,
        delivered_last_minute=0,
        next_try_ms=None,
        last_error=None if state in ("active", "paused") else "503",
        last_error_ms=None,
        last_delivered_ms=None,
    )


GROWING = Flow(
    in_per_minute=168,
    out_per_minute=30,
    direction="growing",
    wait_s=9680,
    growing_since_ms=NOW_MS - 11 * MINUTE_MS,
)
TOO_LONG = Flow(
    in_per_minute=0,
    out_per_minute=30,
    direction="draining",
    wait_s=60_618,
    end_s=60_618,
    too_long_since_ms=NOW_MS - MINUTE_MS,
)


def flowing(flow: Flow, state: State = "active") -> SinkStatus:
    return replace(_condition(state, since_ms=NOW_MS - HOUR_MS), flow=flow)


def of_source(
    *,
    rotation: Rotation | None = None,
    dropped: int = 0,
    skew_s: float | None = None,
    late_s: float = 400,
    removed_ms: int | None = None,
    **refused: int,
) -> Facts:
    times = {"first_ms": NOW_MS - MINUTE_MS, "last_ms": NOW_MS - 1000} if refused else {}
    traffic = SourceTraffic(
        verified_ms=None,
        skew_s=skew_s,
        refusals=SignatureRefusals(skew_s=late_s, **{**times, **refused}),
    )
    source = SourceFacts(
        name="main",
        traffic=traffic,
        last_events=(),
        rotation=rotation,
        dropped=dropped,
        removed_ms=removed_ms,
    )
    return replace(FACTS, sources=(source,))


def rotation(*, waiting: int = 0, left_ms: int = 10 * MINUTE_MS) -> Rotation:
    until_ms = NOW_MS + left_ms
    return Rotation(
        source="main",
        begun_ms=NOW_MS - MINUTE_MS,
        until_ms=until_ms,
        expires_ms=until_ms + 680_000,
        kept=waiting,
        verified=0,
        duplicates=0,
        waiting=waiting,
        bytes=waiting,
    )


def lost(*ids: int) -> Facts:
    gap = Interval(from_ms=NOW_MS - 3 * HOUR_MS, to_ms=NOW_MS - HOUR_MS)
    absences = [
        Absence(
            id=each,
            cause="crashed",
            from_ms=gap.from_ms,
            to_ms=gap.to_ms,
            lacks=gap,
            acknowledged_ms=None,
        )
        for each in ids
    ]
    loss_ms = 2 * HOUR_MS * len(ids)
    return replace(FACTS, unacknowledged=absences, unacknowledged_loss_ms=loss_ms)


def unreconciled(*, reconciles_by_itself: bool = False) -> Facts:
    (source,) = of_source().sources
    changed = replace(
        source,
        unreconciled=lost(4).unacknowledged,
        reconciles_by_itself=reconciles_by_itself,
    )
    return replace(FACTS, sources=(changed,))


def member(name: str, *, config: str = "c1", is_away: bool = False) -> Member:
    return Member(
        name=name,
        version="1.2.3",
        revision="",
        address=f"http://{name}:9464",
        since_ms=NOW_MS - HOUR_MS,
        beat_ms=NOW_MS - MINUTE_MS if is_away else NOW_MS,
        config=config,
        sinks=(),
        is_away=is_away,
        is_self=name == "a",
    )


def of_cluster(*members: Member, free: str | None = None) -> Facts:
    sinks = () if free is None else (FreeSink(name=free, since_ms=NOW_MS - MINUTE_MS),)
    return replace(FACTS, cluster=Cluster(members=members, free=sinks))


def refused(*faults: str) -> Facts:
    reading = Reading(at_ms=NOW_MS - 1000, reason="asked for", taken=False, faults=faults)
    return replace(FACTS, refused_reloads=(reading,))


FOUND: Mapping[str, tuple[Facts, str, str, str]] = {
    "draining": (replace(FACTS, draining=True), "info", "the relay is stopping", "relay status"),
    "a full disk": (
        of_store(disk=FULL, unready=("the store is short of free space",)),
        "page",
        "no events are accepted: senders get 503",
        "df -h /var/lib/relay",
    ),
    "a disk that hangs": (
        of_store(unready=("the store has not committed within 2 s",)),
        "page",
        "no events are accepted: senders get 503",
        "dmesg --ctime | tail -50",
    ),
    "a database that does not answer": (
        of_store(
            folder=None,
            disk=Disk(store_bytes=MIB, free_bytes=None, min_free_bytes=None, log_bytes=None),
            unready=("the store has not committed within 2 s",),
        ),
        "page",
        "no events are accepted: senders get 503",
        "relay check-config --connect",
    ),
    "little free space": (
        of_store(disk=replace(FULL, free_bytes=511 * MIB)),
        "ticket",
        "the disk of the store is nearly full",
        "df -h /var/lib/relay",
    ),
    "a log that a reader holds": (
        of_store(disk=replace(FULL, free_bytes=4096 * MIB, log_bytes=57 * MIB)),
        "ticket",
        "the store's log has grown to 57.0 MiB",
        "lsof +D /var/lib/relay",
    ),
    "a store that cannot be read": (
        of_store(unread="no answer within 2 s"),
        "ticket",
        "the store cannot be read: this status is incomplete",
        "relay store check",
    ),
    "a database that is set up for losses": (
        of_store(
            warnings=[StoreWarning("store.x", {"reason": "fsync is off", "advice": "turn it on"})]
        ),
        "ticket",
        "the database is not set up as the relay needs it",
        "relay check-config --connect",
    ),
    "an unclean store": (
        of_store(unclean=True),
        "info",
        "the whole store is being checked",
        "relay store check",
    ),
    "unreadable requests": (
        of_store(unreadable=2, unreadable_ms=NOW_MS - HOUR_MS),
        "ticket",
        "2 requests held no readable event",
        "relay unreadable list",
    ),
    "an unreadable request of last week": (
        of_store(unreadable=1, unreadable_ms=NOW_MS - 168 * HOUR_MS),
        "info",
        "1 request held no readable event",
        "relay unreadable list",
    ),
    "a sink throttled for a moment": (
        of_sink("throttled", ago_ms=10_000, pending=3, oldest_pending_ms=NOW_MS - 10_000),
        "info",
        "sink crm is throttled",
        "relay sinks test crm",
    ),
    "a sink throttled for long": (
        of_sink("throttled", ago_ms=16 * MINUTE_MS),
        "ticket",
        "sink crm is throttled",
        "relay sinks test crm",
    ),
    "a sink throttled again and again": (
        of_sink("throttled", ago_ms=10_000, pending=3, oldest_pending_ms=NOW_MS - HOUR_MS),
        "ticket",
        "sink crm is throttled",
        "relay sinks test crm",
    ),
    "a parked sink": (of_sink("parked"), "ticket", "sink crm is parked", "relay sinks test crm"),
    "a paused sink": (
        of_sink("paused", ago_ms=47 * HOUR_MS, pending=3),
        "info",
        "sink crm is paused",
        "relay sinks resume crm",
    ),
    "a sink paused and forgotten": (
        of_sink("paused", ago_ms=49 * HOUR_MS, pending=3),
        "ticket",
        "sink crm is paused",
        "relay sinks resume crm",
    ),
    "a paused sink that nothing waits for": (
        of_sink("paused", ago_ms=49 * HOUR_MS),
        "info",
        "sink crm is paused",
        "relay sinks resume crm",
    ),
    "an active sink that is behind": (
        of_sink(pending=3, oldest_pending_ms=NOW_MS - HOUR_MS),
        "ticket",
        "sink crm is behind",
        "relay events list --sink crm --outcome pending",
    ),
    "an active sink whose backlog grows": (
        of_sink(condition=flowing(GROWING), pending=4840, oldest_pending_ms=NOW_MS - HOUR_MS),
        "ticket",
        "sink crm falls behind: 30 a minute out, 168 in",
        "relay events list --sink crm --outcome pending",
    ),
    "an active sink whose backlog takes longer than give_up_after": (
        of_sink(condition=flowing(TOO_LONG), pending=30_309),
        "ticket",
        "sink crm needs about 17 h for what waits, longer than its give_up_after",
        "relay events list --sink crm --outcome pending",
    ),
    "a replay that makes no progress": (
        of_sink(pending=3, replaying_since_ms=NOW_MS - HOUR_MS),
        "ticket",
        "a replay to sink crm makes no progress",
        "relay replays list",
    ),
    "a backlog without a sink": (
        of_sink(None, pending=3, oldest_pending_ms=NOW_MS - 1000),
        "ticket",
        "events wait for sink crm, which is not in the config",
        "relay reload",
    ),
    "dead letters": (
        of_sink(dead=2, dead_since_ms=NOW_MS, dead_reason="422"),
        "ticket",
        "sink crm has 2 dead letters",
        "relay dead-letters list --sink crm",
    ),
    "dead letters of a sink that is gone": (
        of_sink(None, dead=1),
        "ticket",
        "sink crm has 1 dead letter",
        "relay dead-letters list --sink crm",
    ),
    "requests that wait for a secret": (
        of_source(rotation=rotation(waiting=2), count=2, retried=1),
        "page",
        "2 requests of source main wait for its new secret",
        "relay rotate finish --source main",
    ),
    "requests that match no secret during a rotation": (
        of_source(rotation=rotation(waiting=2), count=2),
        "info",
        "2 requests of source main wait for its new secret",
        "relay rotate finish --source main",
    ),
    "requests that match no secret after a rotation": (
        of_source(rotation=rotation(waiting=2, left_ms=-1), count=2, retried=1),
        "page",
        "2 requests of source main wait for its new secret",
        "relay reload",
    ),
    "requests that a rotation has no room for": (
        of_source(rotation=rotation(), dropped=1),
        "page",
        "requests of source main are dropped: its quarantine is full",
        "relay rotate finish --source main",
    ),
    "a rotation": (
        of_source(rotation=rotation(), count=3, retried=1),
        "info",
        "the secret of source main is being rotated",
        "relay rotate finish --source main",
    ),
    "the sender's own requests with a wrong signature": (
        of_source(count=3, retried=1),
        "page",
        "no request of source main has a valid signature",
        "relay rotate begin --source main",
    ),
    "a stranger's requests": (
        of_source(count=300),
        "info",
        "requests of source main have invalid signatures",
        "relay events tail",
    ),
    "a clock beyond the tolerance": (
        of_source(count=5, untimely=5, skew_s=400),
        "page",
        "every request of source main is too old or in the future",
        "timedatectl status",
    ),
    "a late retry of one event": (
        of_source(count=2, untimely=2),
        "info",
        "every request of source main is too old or in the future",
        "timedatectl status",
    ),
    "a clock that drifts": (
        of_source(skew_s=-61),
        "ticket",
        "this host's clock is 1 min 1 s behind the sender's (source main)",
        "timedatectl status",
    ),
    "a database's clock that drifts": (
        replace(of_source(skew_s=-61), store=IN_DATABASE),
        "ticket",
        "the database's clock is 1 min 1 s behind the sender's (source main)",
        "timedatectl status",
    ),
    "a host's clock ahead of the database's": (
        replace(FACTS, store=replace(IN_DATABASE, clock_offset_s=600.0)),
        "ticket",
        "this host's clock is 10 min ahead of the database's",
        "timedatectl status",
    ),
    "a refused config": (
        refused("sink[0].rate", "server.max_body"),
        "ticket",
        "the last reload was refused; the previous config is in use",
        "relay check-config",
    ),
    "a member that is away": (
        of_cluster(member("a"), member("b", config="c2", is_away=True)),
        "ticket",
        "member b is away",
        "relay status --url http://b:9464",
    ),
    "members with different configs": (
        of_cluster(member("a"), member("b", config="c2")),
        "ticket",
        "the members have different configs",
        "relay reload",
    ),
    "a sink that no member dispatches": (
        of_cluster(member("a"), free="crm"),
        "page",
        "sink crm has no owner",
        "relay check-config --connect",
    ),
    "a loss": (
        lost(4),
        "ticket",
        "events were lost while the relay was away",
        "relay absences acknowledge 4",
    ),
    "an outage that the sender's API was not asked about": (
        unreconciled(),
        "ticket",
        "an outage of source main has not been reconciled",
        "relay reconcile --source main",
    ),
    "an outage that is asked about by itself": (
        unreconciled(reconciles_by_itself=True),
        "info",
        "an outage of source main is about to be reconciled",
        "relay reconciliations list",
    ),
    "an endpoint that was removed": (
        of_source(removed_ms=NOW_MS),
        "ticket",
        "nothing can arrive at source main: its webhook endpoint was removed",
        "relay endpoint register --source main --url https://HOST/PATH --secret-file FILE",
    ),
    "losses": (
        lost(4, 7),
        "ticket",
        "events were lost while the relay was away",
        "relay absences list",
    ),
}


@pytest.mark.parametrize("case", FOUND)
def test_a_problem_has_a_severity_and_a_next_command(case: str) -> None:
    facts, severity, what, command = FOUND[case]
    (finding,) = problems(facts)
    assert (finding.severity, finding.what, finding.next) == (severity, what, command)
    assert finding.why
    assert is_well([finding]) == (severity == "info")


@pytest.mark.parametrize("command", sorted({command for *_, command in FOUND.values()}))
def test_every_next_command_exists(command: str) -> None:
    if command.startswith("relay "):
        assert not isinstance(parse(command), click.Group)


@pytest.mark.parametrize(
    "facts",
    [
        FACTS,
        of_sink("active", pending=3, oldest_pending_ms=NOW_MS - 1000),
        of_source(skew_s=59),
        of_source(rotation=rotation(left_ms=-1)),
        of_store(disk=replace(FULL, free_bytes=512 * MIB)),
    ],
)
def test_a_healthy_relay_has_no_problems(facts: Facts) -> None:
    assert problems(facts) == []
    assert is_well([])


@pytest.mark.parametrize(
    ("skew_s", "age"), [(720, "12 min before it came"), (-395, "6 min 35 s in the future")]
)
def test_a_request_outside_the_tolerance_is_told_by_its_own_age(skew_s: int, age: str) -> None:
    (finding,) = problems(of_source(count=3, untimely=3, skew_s=0.0, late_s=skew_s))
    assert f"the last was signed {age}" in finding.why
    assert "0 s" not in finding.why


def test_old_refusals_are_ignored() -> None:
    facts = of_source(count=3, retried=1, last_ms=NOW_MS - 16 * MINUTE_MS)
    assert problems(facts) == []


def test_a_replay_that_makes_progress_is_not_a_problem_however_long_it_takes() -> None:
    facts = of_sink(pending=3, replaying_since_ms=NOW_MS - 9 * HOUR_MS)
    (sink,) = facts.sinks
    assert sink.condition is not None
    moving = replace(sink.condition, last_delivered_ms=NOW_MS - 1000)
    assert problems(replace(facts, sinks=(replace(sink, condition=moving),))) == []


def test_the_most_severe_problem_comes_first() -> None:
    facts = replace(
        of_store(unclean=True, unready=("the store accepts no events",)),
        sinks=of_sink("parked").sinks,
    )
    assert [each.severity for each in problems(facts)] == ["page", "ticket", "info"]


def test_since_and_why_give_start_and_cause() -> None:
    (full,) = problems(FOUND["a full disk"][0])
    assert full.since_ms == STORE.alive_ms
    refusing = of_store(disk=FULL, unready=("no space",), unready_since_ms=NOW_MS - HOUR_MS)
    assert problems(refusing)[0].since_ms == NOW_MS - HOUR_MS
    assert full.why == ("the store is short of free space; 255.0 MiB free, min_free is 256.0 MiB")
    (throttled,) = problems(FOUND["a sink throttled for a moment"][0])
    assert throttled.since_ms == NOW_MS - 10_000
    assert throttled.why == "503; 3 pending, the oldest for 10 s"
    (config,) = problems(refused("a", "b", "c", "d", "e"))
    assert config.why == "a, b, c, and 2 more"


def test_a_name_with_a_blank_is_quoted_in_the_command() -> None:
    facts = of_sink("parked", name="my crm")
    (finding,) = problems(facts)
    assert finding.next == "relay sinks test 'my crm'"


def test_an_unread_backlog_is_reported_as_unknown() -> None:
    facts = of_sink("parked", pending=None)
    assert "backlog unknown" in problems(facts)[0].why


def test_a_growing_backlog_is_one_finding_with_its_figures_since_it_grows() -> None:
    facts = of_sink(
        condition=flowing(GROWING), pending=4840, oldest_pending_ms=NOW_MS - 40 * MINUTE_MS
    )
    (finding,) = problems(facts)
    assert finding.since_ms == GROWING.growing_since_ms
    assert finding.why == (
        "4,840 pending, the oldest for 40 min; if nothing more came, it would take about 3 h; "
        "raise its rate or concurrency, or make its destination faster"
    )
    assert not is_well([finding])


@pytest.mark.parametrize("state", ["paused", "parked", "throttled"])
def test_a_sink_that_is_not_active_keeps_its_own_finding(state: State) -> None:
    facts = of_sink(condition=flowing(GROWING, state), pending=4840)
    (finding,) = problems(facts)
    assert finding.what == f"sink crm is {state}"


def test_a_backlog_that_grows_for_less_than_ten_minutes_is_none() -> None:
    flow = replace(GROWING, growing_since_ms=None)
    assert not problems(of_sink(condition=flowing(flow), pending=4840))


@pytest.mark.parametrize(
    ("reason", "chosen"), [("400: it's no", " --reason '400: it'\"'\"'s no'"), (None, "")]
)
def test_a_sink_that_refuses_everything_names_the_command_for_what_died(
    reason: str | None, chosen: str
) -> None:
    condition = replace(_condition("parked", since_ms=NOW_MS), refusals=Refusals(reason))
    found = next(each for each in problems(of_sink(condition=condition, dead=4)) if each.why)
    command = f"relay dead-letters replay --sink crm{chosen}"
    assert found.why.endswith(f"deliver what died before: {command}")
    assert parse(command).name == "replay"


def test_unreadable_requests_are_a_problem_since_the_first_of_them() -> None:
    first_ms, last_ms = NOW_MS - 168 * HOUR_MS, NOW_MS - HOUR_MS
    facts = of_store(unreadable=2, unreadable_since_ms=first_ms, unreadable_ms=last_ms)
    (found,) = problems(facts)
    assert (found.since_ms, found.severity) == (first_ms, "ticket")
