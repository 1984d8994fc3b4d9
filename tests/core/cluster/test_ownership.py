"""Free sinks go to the member with the fewest, and sinks move until all have their share."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.core.cluster.ownership import designate, handover

ALL = frozenset("abcdef")
NONE: frozenset[str] = frozenset()


def test_free_sinks_are_spread_evenly() -> None:
    chosen = designate({"m": ALL, "n": ALL}, dict.fromkeys("abcd"))
    assert sorted(chosen.values()) == ["m", "m", "n", "n"]


def test_a_member_without_sinks_takes_the_free_one() -> None:
    assert designate({"m": ALL, "n": ALL}, {"a": "m", "b": None}) == {"b": "n"}


def test_a_sink_goes_only_to_a_member_that_has_it_in_its_config() -> None:
    assert designate({"m": ALL, "n": NONE}, {"a": "m", "b": None}) == {"b": "m"}
    assert designate({"n": NONE}, {"b": None}) == {}


@pytest.mark.parametrize(
    ("holders", "expected"),
    [
        ({"a": "m", "b": "m"}, ("b", "m")),
        ({"a": "m", "b": "n"}, None),
        ({"a": "m", "b": "m", "c": "n"}, None),
        ({"a": "gone", "b": "m"}, None),
        ({}, None),
    ],
)
def test_a_sink_moves_from_a_member_with_two_more(
    holders: dict[str, str | None], expected: tuple[str, str] | None
) -> None:
    assert handover({"m": ALL, "n": ALL}, holders) == expected


def test_a_sink_that_the_other_lacks_stays() -> None:
    assert handover({"m": ALL, "n": frozenset("a")}, {"a": "m", "b": "m"}) == ("a", "m")
    assert handover({"m": ALL, "n": NONE}, {"a": "m", "b": "m"}) is None


@given(st.lists(st.sampled_from("mno"), max_size=6))
def test_moves_end_in_balance(owners: list[str]) -> None:
    members = dict.fromkeys("mno", ALL)
    holders: dict[str, str | None] = dict(zip("abcdef", owners, strict=False))
    moves = 0
    while (move := handover(members, holders)) is not None:
        holders[move[0]] = None
        holders |= designate(members, holders)
        moves += 1
    loads = [list(holders.values()).count(member) for member in members]
    assert max(loads) - min(loads) <= 1
    assert moves <= len(owners)
