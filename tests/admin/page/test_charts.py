"""Names below the columns of a chart."""

import pytest

from relay.admin.page.charts import ticks


@pytest.mark.parametrize("count", [1, 2, 3, 5, 24, 30, 60, 92])
def test_a_name_stands_under_the_middle_of_its_column(count: int) -> None:
    names = [str(number) for number in range(count)]
    named = ticks(names)
    assert [tick.x for tick in named] == [100 * (int(tick.name) + 0.5) / count for tick in named]
    assert (named[0].name, named[-1].name) == (names[0], names[-1])
    assert len(named) == min(count, 5)


def test_names_at_the_ends_stay_within_the_chart() -> None:
    assert [tick.anchor for tick in ticks(["day"] * 60)] == ["start", *["middle"] * 3, "end"]
    assert [tick.anchor for tick in ticks(["day"] * 2)] == ["middle", "middle"]


def test_a_chart_without_columns_has_no_names() -> None:
    assert ticks([]) == []
