"""JMESPath expressions: what is refused at the start, and what is true."""

import pytest

from relay.core.errors import InvalidRule
from relay.core.expressions import FAILURES, Expression

DOUBLED = "[@,@][]"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it is empty"),
        ("a ==", "its end is missing"),
        ("a = 1", "at column 3"),
        ("a b", "unexpected b at column 3"),
        ("(" * 10_000 + "a" + ")" * 10_000, "nested too deeply"),
    ],
)
def test_a_text_that_is_no_expression_is_refused_with_the_cause(text: str, why: str) -> None:
    with pytest.raises(InvalidRule, match=why):
        Expression(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("lenght(a) == `1`", r"unknown function lenght\(\); did you mean length"),
        ("a && [?zzz(b)]", r"unknown function zzz\(\)"),
        ("length(a, b)", r"length\(\) takes 1 argument, not 2"),
        ("contains(a)", r"contains\(\) takes 2 arguments, not 1"),
        ("not_null()", r"not_null\(\) takes 1 or more arguments, not 0"),
        (" | ".join([DOUBLED] * 20), "repeat its input more than 100 times"),
        (" | ".join(["[*].[`[1,2,3]`][][]"] * 20), "repeat its input more than 100 times"),
        (" | ".join(["{a: @, b: @}"] * 20), "repeat its input more than 100 times"),
        (" | ".join(["to_string([@, @])"] * 20), "repeat its input more than 100 times"),
    ],
)
def test_a_check_refuses_what_cannot_be_right_or_runs_away(text: str, why: str) -> None:
    with pytest.raises(InvalidRule, match=why):
        Expression(text).check()


@pytest.mark.parametrize(
    "text",
    [
        "ok",
        "length(results) == `1`",
        "ErrorCode == `0`",
        "!(errors) && length(results) == `1`",
        "not_null(a, b, c)",
        "results[0:2].id | [?starts_with(@, 'a')] || results[*].{a: b, c: d}",
        "sort_by(items, &id)[-1].ok",
        " | ".join([DOUBLED] * 6),
    ],
)
def test_a_usable_expression_passes_the_check(text: str) -> None:
    Expression(text).check()


def test_a_chain_that_is_too_long_to_walk_is_refused() -> None:
    with pytest.raises(InvalidRule, match="nested too deeply"):
        Expression(" || ".join(["a"] * 3_000)).check()


@pytest.mark.parametrize("value", [None, False, "", [], {}])
def test_null_false_and_empty_values_are_false(value: object) -> None:
    assert not Expression("a").is_true({"a": value})


@pytest.mark.parametrize("value", [True, 0, 0.0, "x", [None], {"b": None}])
def test_every_other_value_is_true(value: object) -> None:
    assert Expression("a").is_true({"a": value})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("length(a) == `1`", {}),
        ("a > `1` && contains(b, 'x')", {"b": 1, "a": 2}),
        ("zzz(a)", {}),
        ("sort_by(@, &a)", [{"a": 1}, {"a": "x"}]),
    ],
)
def test_a_value_that_an_expression_cannot_work_on_raises_one_of_its_failures(
    text: str, value: object
) -> None:
    with pytest.raises(FAILURES):
        Expression(text).is_true(value)


@pytest.mark.parametrize(
    ("text", "is_true"),
    [
        ('status == "ok"', True),
        ("ok == true", True),
        ("[?a.b != c] && d", True),
        ("status == 'ok'", False),
        ("ok == `true` && length(a) > `1`", False),
        ("a || b", False),
    ],
)
def test_a_comparison_of_two_names_is_found(text: str, is_true: bool) -> None:
    assert Expression(text).compares_names is is_true
