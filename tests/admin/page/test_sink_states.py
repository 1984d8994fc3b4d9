"""A sink's states over some time, as the page draws and tells them."""

from relay.admin.page.views.sinks.sink import strip_of
from relay.core.minutes import DAY_MS, HOUR_MS
from relay.store.sink_states import StateSpan

NOW_MS = 10 * DAY_MS


def test_a_strip_says_how_long_each_state_lasted() -> None:
    strip = strip_of(
        [
            StateSpan("active", NOW_MS - DAY_MS, NOW_MS - 3 * HOUR_MS),
            StateSpan("parked", NOW_MS - 3 * HOUR_MS, NOW_MS - HOUR_MS),
            StateSpan("active", NOW_MS - HOUR_MS, None),
        ],
        DAY_MS,
        NOW_MS,
    )
    assert strip.text == "active 22 h, parked 2 h"
    assert [bar.tone for bar in strip.bars] == ["ok", "bad", "ok"]
    assert strip.bars[1].height > strip.bars[0].height


def test_times_without_a_state_are_unknown_also_before_the_first() -> None:
    spans = [
        StateSpan("active", NOW_MS - 4 * HOUR_MS, NOW_MS - 2 * HOUR_MS),
        StateSpan(None, NOW_MS - 2 * HOUR_MS, NOW_MS - HOUR_MS),
        StateSpan("paused", NOW_MS - HOUR_MS, None),
    ]
    assert strip_of(spans, DAY_MS, NOW_MS).text == "active 2 h, paused 1 h, unknown 21 h"
    assert strip_of([], DAY_MS, NOW_MS).text == "unknown 1 d"


def test_states_from_before_the_time_do_not_count() -> None:
    spans = [
        StateSpan("parked", NOW_MS - 5 * DAY_MS, NOW_MS - 2 * DAY_MS),
        StateSpan("active", NOW_MS - 2 * DAY_MS, None),
    ]
    assert strip_of(spans, DAY_MS, NOW_MS).text == "active 1 d"
