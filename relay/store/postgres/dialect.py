"""What PostgreSQL reads in place of what only SQLite knows, in the statements of both engines."""

import re
from functools import lru_cache

from relay.store.postgres.text import storable
from relay.store.sql import Sql, Values

_RULES = (
    (re.compile("%"), "%%"),
    # The index is read in its order for an array; for a join, the rows have to be sorted.
    (
        re.compile(
            r"(?<!NOT )IN \((SELECT CAST\(value AS bigint\) FROM json_each\(:\w+\) AS \w+)\)"
        ),
        r"= ANY (ARRAY(\1))",
    ),
    # A list of values is JSON: rows with the column `value`.
    (
        re.compile(r"json_each\(:(\w+)\) AS (\w+)"),
        r"jsonb_array_elements_text(CAST(:\1 AS jsonb)) AS \2 (value)",
    ),
    # Only PostgreSQL's own conditions have arrays, which are sent in binary.
    (re.compile(r"CAST\(:(\w+) AS (\w+)\[\]\)"), r"CAST(%(\1)b AS \2[])"),
    (re.compile(r":([a-z]\w*)"), r"%(\1)s"),
    # The schema, which has SQLite's own name.
    (re.compile(r"\bmain\."), "relay."),
    # The number of a row, in tables that name no other.
    (re.compile(r"\browid\b"), "number"),
    (re.compile(r"\binstr\("), "strpos("),
    (re.compile(r"\bgroup_concat\("), "string_agg("),
    # An object without one of its keys.
    (
        re.compile(r"json_remove\((\w+), '\$\.(\w+)'\)"),
        r"CAST(CAST(\1 AS jsonb) - '\2' AS text)",
    ),
    # The order of the code points.
    (re.compile(r"\bCOLLATE BINARY\b"), 'COLLATE "C"'),
    # What SQLite needs no word for, such as locks of rows.
    (re.compile(r"/\*postgres (.*?)\*/", re.DOTALL), r"\1"),
)


@lru_cache(maxsize=1024)
def translated(text: Sql) -> str:
    """Return the statement as `Database.execute` takes it."""
    sql = str(text)
    for pattern, replacement in _RULES:
        sql = pattern.sub(replacement, sql)
    return sql


def fitted(values: Values) -> Values:
    """Return the values with text that can be stored."""
    return {
        name: storable(value) if isinstance(value, str) else value for name, value in values.items()
    }
