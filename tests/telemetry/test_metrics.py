"""Every metric of the contract exists from the start, with its name and labels."""

import math
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from relay.core.sink_status import Flow
from relay.core.totals import Total
from relay.telemetry.metrics import UNKNOWN, Metrics
from relay.telemetry.metrics.labels import CODES, REASONS, SKEW
from relay.telemetry.metrics.store import Disk

CONTRACT = {
    "relay_build_info": {"version", "revision", "python", "sqlite", "postgres"},
    "relay_config_last_reload_successful": set(),
    "relay_log_lines_dropped_total": set(),
    "relay_requests_total": {"source", "code"},
    "relay_ack_seconds": {"source"},
    "relay_rejected_total": {"source", "reason"},
    "relay_signature_skew_seconds": {"source"},
    "relay_signatures_total": {"source", "secret"},
    "relay_quarantined_requests": {"source"},
    "relay_mismatch_retries_total": {"source"},
    "relay_quarantine_dropped_total": {"source", "reason"},
    "relay_events_total": {"source", "event", "outcome"},
    "relay_leads_captured_total": {"source"},
    "relay_video_watched_total": {"source", "milestone"},
    "relay_last_event_timestamp_seconds": {"source", "event"},
    "relay_deliveries_total": {"sink", "outcome"},
    "relay_attempts_total": {"sink", "result"},
    "relay_attempt_seconds": {"sink"},
    "relay_delivery_lag_seconds": {"sink"},
    "relay_pending_deliveries": {"sink"},
    "relay_oldest_pending_timestamp_seconds": {"sink"},
    "relay_dead_letters": {"sink"},
    "relay_sink_state": {"sink", "state"},
    "relay_sink_standstill_seconds": {"sink"},
    "relay_loop_lag_seconds": set(),
    "relay_store_commit_seconds": set(),
    "relay_store_bytes": set(),
    "relay_store_free_bytes": set(),
    "relay_unacknowledged_loss_seconds": set(),
    "relay_reconstructed_events_total": {"source", "event"},
}
OURS: dict[str, set[str]] = {
    "relay_sink_state_timestamp_seconds": {"sink"},
    "relay_sink_waits_for": {"sink", "reason"},
    "relay_backlog_flow_per_second": {"sink", "direction"},
    "relay_backlog_expected_end_seconds": {"sink"},
    "relay_sink_falls_behind": {"sink", "reason"},
    "relay_connections_limited_total": {"listener", "reason"},
    "relay_damaged_bodies_total": {"sink"},
    "relay_downtime_seconds": set(),
    "relay_enrichments_total": {"result"},
    "relay_start_time_seconds": set(),
    "relay_downtime_lost_seconds": set(),
    "relay_store_log_bytes": set(),
    "relay_store_min_free_bytes": set(),
    "relay_clock_offset_seconds": set(),
    "relay_unreconciled_loss_seconds": {"source"},
    "relay_members": {"state"},
    "relay_members_configs_differ": set(),
    "relay_sinks_without_owner": set(),
}
"""Metrics beyond the contract."""

HISTOGRAMS = {
    "relay_ack_seconds",
    "relay_signature_skew_seconds",
    "relay_attempt_seconds",
    "relay_delivery_lag_seconds",
    "relay_loop_lag_seconds",
    "relay_store_commit_seconds",
}
DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"


def lead(events: int, *, last_ms: int = 1_700_000_000_000) -> Total:
    """Return a total of leads of the source `main`."""
    return Total("main", "lead.captured", "", events, last_ms)


@pytest.fixture
def metrics() -> Metrics:
    instance = Metrics(["main", "backup"], ["sales", "crm"], revision="abc123")
    instance.show_secrets("main", ["1", "old"])
    return instance


def text(metrics: Metrics) -> str:
    return metrics.exposition("")[0].decode()


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    for family in text_string_to_metric_families(text(metrics)):
        for sample in family.samples:
            if sample.name == name and sample.labels == labels:
                return sample.value
    return None


def types(metrics: Metrics) -> dict[str, str]:
    return dict(re.findall(r"^# TYPE (relay_\S+) (\S+)$", text(metrics), re.MULTILINE))


def test_every_metric_of_the_contract_exists_with_its_labels(metrics: Metrics) -> None:
    metrics.store.set_space(1 << 30, floor=256 << 20, log=8 << 20)
    metrics.cluster.set(live=2, away=1, configs=2, free_sinks=1)
    labels_by_name: dict[str, set[str]] = {}
    for line in text(metrics).splitlines():
        if line.startswith("relay_"):
            name = re.match(r"\w+", line)[0]  # type: ignore[index]
            name = re.sub(r"_(bucket|count|sum)$", "", name)
            labels_by_name[name] = set(re.findall(r'[{,](\w+)="', line)) - {"le"}
    assert labels_by_name == CONTRACT | OURS


def test_counters_end_in_total_and_times_are_histograms(metrics: Metrics) -> None:
    for name, kind in types(metrics).items():
        assert (kind == "counter") == name.endswith("_total")
        assert (kind == "histogram") == (name in HISTOGRAMS)


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        *(("relay_requests_total", {"source": "main", "code": str(code)}) for code in CODES),
        *(("relay_rejected_total", {"source": UNKNOWN, "reason": reason}) for reason in REASONS),
        ("relay_requests_total", {"source": UNKNOWN, "code": "404"}),
        ("relay_events_total", {"source": "backup", "event": "other", "outcome": "conflict"}),
        ("relay_leads_captured_total", {"source": "main"}),
        ("relay_video_watched_total", {"source": "main", "milestone": "75%"}),
        ("relay_last_event_timestamp_seconds", {"source": "main", "event": "webhook.test"}),
        ("relay_signatures_total", {"source": "main", "secret": "old"}),
        ("relay_quarantined_requests", {"source": "main"}),
        ("relay_quarantine_dropped_total", {"source": "main", "reason": "rate"}),
        ("relay_ack_seconds_count", {"source": "main"}),
        ("relay_signature_skew_seconds_count", {"source": "main"}),
        ("relay_deliveries_total", {"sink": "crm", "outcome": "dead"}),
        ("relay_attempts_total", {"sink": "crm", "result": "parked"}),
        ("relay_attempt_seconds_count", {"sink": "crm"}),
        ("relay_delivery_lag_seconds_count", {"sink": "crm"}),
        ("relay_pending_deliveries", {"sink": "crm"}),
        ("relay_oldest_pending_timestamp_seconds", {"sink": "crm"}),
        ("relay_dead_letters", {"sink": "crm"}),
        ("relay_sink_state", {"sink": "crm", "state": "throttled"}),
        ("relay_sink_state_timestamp_seconds", {"sink": "crm"}),
        ("relay_sink_waits_for", {"sink": "crm", "reason": "rate"}),
        ("relay_sink_standstill_seconds", {"sink": "crm"}),
        ("relay_store_commit_seconds_count", {}),
        ("relay_store_bytes", {}),
    ],
)
def test_known_label_values_are_0_from_the_start(
    metrics: Metrics, name: str, labels: dict[str, str]
) -> None:
    assert value(metrics, name, **labels) == 0


def test_the_build_names_its_versions(metrics: Metrics) -> None:
    metrics.process.opened("sqlite", "3.51.0")
    (line,) = re.findall(r"^relay_build_info\{(.*)\} 1.0$", text(metrics), re.MULTILINE)
    assert 'postgres="",' in line
    assert 'revision="abc123",sqlite="3.51.0",version="' in line


def test_a_store_without_a_disk_of_its_own_has_no_series_of_free_space(metrics: Metrics) -> None:
    metrics.store.set_size(4096)
    assert "relay_store_free_bytes " not in re.sub("(?m)^#.*", "", text(metrics))
    assert metrics.store.disk() == Disk(
        store_bytes=4096, free_bytes=None, min_free_bytes=None, log_bytes=None
    )


def test_a_store_of_one_relay_has_no_series_of_members(metrics: Metrics) -> None:
    series = re.sub("(?m)^#.*", "", text(metrics))
    assert not re.search("relay_members|relay_sinks_without_owner", series)


def test_the_relays_that_share_a_store_are_counted(metrics: Metrics) -> None:
    metrics.cluster.set(live=2, away=1, configs=2, free_sinks=3)
    assert value(metrics, "relay_members", state="live") == 2
    assert value(metrics, "relay_members", state="away") == 1
    assert value(metrics, "relay_members_configs_differ") == 1
    assert value(metrics, "relay_sinks_without_owner") == 3
    metrics.cluster.set(live=2, away=0, configs=1, free_sinks=0)
    assert value(metrics, "relay_members_configs_differ") == 0


def test_an_accepted_lead_is_counted_by_source_and_kind(metrics: Metrics) -> None:
    metrics.received("main", "lead.captured", "accepted")
    metrics.counted(lead(1, last_ms=1_700_000_000_500))
    metrics.request("main", 202)
    metrics.acknowledged("main", 0.004)
    labels = {"source": "main", "event": "lead.captured"}
    assert value(metrics, "relay_events_total", outcome="accepted", **labels) == 1
    assert value(metrics, "relay_events_total", outcome="duplicate", **labels) == 0
    assert value(metrics, "relay_last_event_timestamp_seconds", **labels) == 1_700_000_000.5
    assert value(metrics, "relay_leads_captured_total", source="main") == 1
    assert value(metrics, "relay_leads_captured_total", source="backup") == 0
    assert value(metrics, "relay_requests_total", source="main", code="202") == 1
    assert value(metrics, "relay_ack_seconds_bucket", source="main", le="0.005") == 1
    assert value(metrics, "relay_ack_seconds_bucket", source="main", le="0.0025") == 0


def test_a_milestone_a_refusal_and_a_commit_are_counted(metrics: Metrics) -> None:
    metrics.counted(Total("main", "video.watched", "completed", 1, 1_700_000_000_500))
    metrics.rejected("main", "stale")
    metrics.store.committed(0.002)
    metrics.store.set_size(4096)
    metrics.store.set_space(1 << 30, floor=256 << 20, log=8 << 20)
    metrics.store.set_clock_offset(-1500)
    assert value(metrics, "relay_video_watched_total", source="main", milestone="completed") == 1
    assert value(metrics, "relay_rejected_total", source="main", reason="stale") == 1
    assert value(metrics, "relay_store_commit_seconds_sum") == 0.002
    assert value(metrics, "relay_store_bytes") == 4096
    assert value(metrics, "relay_clock_offset_seconds") == -1.5
    assert value(metrics, "relay_store_free_bytes") == 1 << 30
    assert value(metrics, "relay_store_min_free_bytes") == 256 << 20
    assert value(metrics, "relay_store_log_bytes") == 8 << 20


def test_a_settled_delivery_and_its_attempts_are_counted_apart(metrics: Metrics) -> None:
    metrics.attempted("crm", "retry", 0.2)
    metrics.attempted("crm", "delivered", 0.1)
    metrics.settled("crm", "delivered", 12.5)
    assert value(metrics, "relay_attempts_total", sink="crm", result="retry") == 1
    assert value(metrics, "relay_attempts_total", sink="crm", result="delivered") == 1
    assert value(metrics, "relay_attempt_seconds_count", sink="crm") == 2
    assert value(metrics, "relay_deliveries_total", sink="crm", outcome="delivered") == 1
    assert value(metrics, "relay_delivery_lag_seconds_sum", sink="crm") == 12.5


def test_a_backlog_has_the_time_of_its_oldest_event(metrics: Metrics) -> None:
    metrics.backlog("crm", 3, 1, 1_700_000_000_000)
    oldest = "relay_oldest_pending_timestamp_seconds"
    assert value(metrics, "relay_pending_deliveries", sink="crm") == 3
    assert value(metrics, "relay_dead_letters", sink="crm") == 1
    assert value(metrics, oldest, sink="crm") == 1_700_000_000
    metrics.backlog("crm", 0, 1, None)
    assert value(metrics, oldest, sink="crm") == 0


def test_the_flow_of_a_backlog_is_shown_per_second(metrics: Metrics) -> None:
    flow = Flow(in_per_minute=168, out_per_minute=30, direction="growing", growing_since_ms=1)
    metrics.flows.set("crm", flow)
    name = "relay_backlog_flow_per_second"
    assert value(metrics, name, sink="crm", direction="in") == 2.8
    assert value(metrics, name, sink="crm", direction="out") == 0.5
    assert value(metrics, "relay_backlog_expected_end_seconds", sink="crm") == math.inf
    assert value(metrics, "relay_sink_falls_behind", sink="crm", reason="growing") == 1
    assert value(metrics, "relay_sink_falls_behind", sink="crm", reason="too_long") == 0


def test_a_flow_that_is_not_known_is_no_number(metrics: Metrics) -> None:
    metrics.flows.set("crm", None)
    for name, labels in (
        ("relay_backlog_flow_per_second", {"direction": "in"}),
        ("relay_backlog_expected_end_seconds", {}),
    ):
        assert str(value(metrics, name, sink="crm", **labels)) == "nan"
    assert value(metrics, "relay_sink_falls_behind", sink="crm", reason="growing") == 0


def test_the_flow_of_a_sink_that_another_relay_dispatches_is_not_shown(metrics: Metrics) -> None:
    metrics.flows.set("crm", None)
    metrics.drop_sink_state("crm")
    text = metrics.exposition("")[0].decode()
    assert not re.search(r'^relay_(backlog|sink_falls)\w*\{.*sink="crm"', text, re.MULTILINE)


def test_a_sink_is_in_one_state_only(metrics: Metrics) -> None:
    metrics.sink_state("crm", "active", since_ms=1_500)
    metrics.sink_state("crm", "parked", since_ms=2_500)
    assert value(metrics, "relay_sink_state_timestamp_seconds", sink="crm") == 2.5
    assert value(metrics, "relay_sink_state", sink="crm", state="parked") == 1
    assert value(metrics, "relay_sink_state", sink="crm", state="active") == 0


def test_a_sink_waits_for_one_reason_at_most(metrics: Metrics) -> None:
    metrics.sink_waits("crm", "rate")
    metrics.sink_waits("crm", "sends")
    assert value(metrics, "relay_sink_waits_for", sink="crm", reason="sends") == 1
    assert value(metrics, "relay_sink_waits_for", sink="crm", reason="rate") == 0
    metrics.sink_waits("crm", None)
    assert value(metrics, "relay_sink_waits_for", sink="crm", reason="sends") == 0


def test_a_refused_reload_sets_the_gauge_to_0(metrics: Metrics) -> None:
    assert value(metrics, "relay_config_last_reload_successful") == 1
    metrics.process.reloaded(successful=False)
    assert value(metrics, "relay_config_last_reload_successful") == 0


def test_a_clock_that_is_behind_shows_as_negative_skew(metrics: Metrics) -> None:
    metrics.skew("main", -45)
    name = "relay_signature_skew_seconds_bucket"
    assert value(metrics, name, source="main", le="-60.0") == 0
    assert value(metrics, name, source="main", le="-30.0") == 1
    assert [-bound for bound in reversed(SKEW)] == list(SKEW)


def test_a_sink_that_a_reload_drops_leaves_no_series(metrics: Metrics) -> None:
    metrics.drop_sink("crm")
    metrics.drop_source("backup")
    assert 'sink="crm"' not in text(metrics)
    assert 'source="backup"' not in text(metrics)
    assert 'sink="sales"' in text(metrics)
    metrics.add_sink("crm")
    metrics.add_sink("crm")
    assert value(metrics, "relay_dead_letters", sink="crm") == 0


def test_an_unknown_label_value_is_counted_too(metrics: Metrics) -> None:
    metrics.request("main", 400)
    metrics.attempted("late", "delivered", 0.1)
    assert value(metrics, "relay_requests_total", source="main", code="400") == 1
    assert value(metrics, "relay_attempts_total", sink="late", result="delivered") == 1


def test_two_relays_in_one_process_count_apart(metrics: Metrics) -> None:
    metrics.counted(lead(1))
    other = Metrics(["main"], [])
    assert value(other, "relay_leads_captured_total", source="main") == 0
    assert not [family for family in REGISTRY.collect() if family.name.startswith("relay")]


def test_the_process_and_python_are_described(metrics: Metrics) -> None:
    assert "\npython_info{" in text(metrics)
    assert "\nprocess_resident_memory_bytes " in text(metrics)
    assert "_created" not in text(metrics)


def test_the_document_describes_exactly_these_metrics(metrics: Metrics) -> None:
    described = set(re.findall(r"^\| `(relay_\w+)", DOCUMENT.read_text(), re.MULTILINE))
    assert described == set(types(metrics))


@pytest.mark.servers
@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_finds_nothing_to_improve(metrics: Metrics) -> None:
    done = subprocess.run(
        ["promtool", "check", "metrics"],
        input=text(metrics).encode(),
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_the_labels_of_a_sources_secrets_exist_from_the_start(metrics: Metrics) -> None:
    metrics.show_secrets("main", ["old", "2"])
    metrics.show_secrets("backup", ["1"])
    metrics.verified("main", "old")
    metrics.show_secrets("main", ["new", "old"])
    name = "relay_signatures_total"
    assert value(metrics, name, source="main", secret="old") == 1
    assert value(metrics, name, source="main", secret="new") == 0
    assert value(metrics, name, source="main", secret="2") is None
    assert value(metrics, name, source="backup", secret="1") == 0
    metrics.drop_source("backup")
    assert value(metrics, name, source="backup", secret="1") is None


def test_an_older_event_does_not_move_the_last_timestamp_back(metrics: Metrics) -> None:
    metrics.counted(lead(1, last_ms=1_700_000_900_000))
    metrics.counted(lead(2, last_ms=1_700_000_000_000))
    name = "relay_last_event_timestamp_seconds"
    assert value(metrics, name, source="main", event="lead.captured") == 1_700_000_900


def test_non_http_requests_are_counted_under_unknown_from_the_start(
    metrics: Metrics,
) -> None:
    name = "relay_requests_total"
    assert value(metrics, name, source=UNKNOWN, code="400") == 0
    assert value(metrics, name, source="main", code="400") is None
    assert value(metrics, name, source=UNKNOWN, code="505") == 0
    metrics.not_http(400)
    assert value(metrics, name, source=UNKNOWN, code="400") == 1
