"""Names below the columns of a chart."""

import pytest

from relay.admin.page.charts import ticks


@pytest.mark.parametrize("count", [1, 2, 3, 5, 24, 30, 60, 92])
def test_some_columns_keep_their_names_and_the_ends_are_among_them(count: int) -> None:
    names = [str(number) for number in range(count)]
    named = ticks(names)
    assert [name for name in named if name] == [name for name in names if name in named]
    assert all(name in ("", names[at]) for at, name in enumerate(named))
    assert (named[0], named[-1]) == (names[0], names[-1])
    assert len([name for name in named if name]) == min(count, 5)


def test_a_chart_without_columns_has_no_names() -> None:
    assert ticks([]) == []
