"""The latest requests of a source, bounded; a valid one clears the refusals."""

from relay.telemetry.traffic import RECENT_MS, SKEWS_MAX, SKEWS_MIN, SignatureRefusals, Traffic
from tests.conftest import NOW_MS


def traffic_of(*skews: float) -> Traffic:
    traffic = Traffic()
    for skew_s in skews:
        traffic.verified("main", skew_s, now_ms=NOW_MS)
    return traffic


def test_a_source_without_requests_has_no_figures() -> None:
    source = Traffic().of("main", now_ms=NOW_MS)
    assert (source.verified_ms, source.skew_s, source.refusals) == (None, None, SignatureRefusals())


def test_the_skew_is_the_median_so_one_late_retry_does_not_count() -> None:
    assert traffic_of(1, 1, 300, 1, 2).of("main", now_ms=NOW_MS).skew_s == 1


def test_a_few_requests_give_no_skew() -> None:
    assert traffic_of(*[300] * (SKEWS_MIN - 1)).of("main", now_ms=NOW_MS).skew_s is None


def test_only_the_latest_requests_of_the_last_hour_count() -> None:
    traffic = traffic_of(*[0] * SKEWS_MAX, *[90] * SKEWS_MAX)
    assert traffic.of("main", now_ms=NOW_MS).skew_s == 90
    assert traffic.of("main", now_ms=NOW_MS + RECENT_MS).skew_s is None


def test_a_valid_signature_with_a_wrong_time_counts_as_skew_and_as_refused() -> None:
    traffic = Traffic()
    for _ in range(SKEWS_MIN):
        traffic.refused("main", skew_s=-400, retried=False, now_ms=NOW_MS)
    source = traffic.of("main", now_ms=NOW_MS)
    assert source.refusals.skew_s == -400
    assert (source.skew_s, source.refusals.untimely, source.verified_ms) == (
        -400,
        SKEWS_MIN,
        None,
    )


def test_refusals_are_counted_from_the_last_valid_signature_on() -> None:
    traffic = traffic_of(0)
    traffic.refused("main", skew_s=None, retried=False, now_ms=NOW_MS + 1)
    traffic.refused("main", skew_s=None, retried=True, now_ms=NOW_MS + 2)
    assert traffic.of("main", now_ms=NOW_MS + 3).refusals == SignatureRefusals(
        count=2, first_ms=NOW_MS + 1, last_ms=NOW_MS + 2, retried=1
    )
    traffic.verified("main", 0, now_ms=NOW_MS + 3)
    assert traffic.of("main", now_ms=NOW_MS + 3).refusals == SignatureRefusals()


def test_sources_are_kept_apart() -> None:
    traffic = traffic_of(0)
    traffic.refused("other", skew_s=None, retried=False, now_ms=NOW_MS)
    assert traffic.of("main", now_ms=NOW_MS).refusals == SignatureRefusals()
    assert traffic.of("other", now_ms=NOW_MS).verified_ms is None
