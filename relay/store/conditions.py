"""Conditions in SQL: expressions with their values, joined alike for either engine."""

from typing import Any

Condition = tuple[str, list[Any]]
"""An SQL expression and its values; a None among them leaves it out."""

ALL = "TRUE"
"""The condition that everything fits."""


def all_of(*conditions: Condition) -> Condition:
    """Join the conditions that have all of their values."""
    used = [condition for condition in conditions if None not in condition[1]]
    sql = " AND ".join(sql for sql, _ in used) or ALL
    return sql, [value for _, values in used for value in values]
