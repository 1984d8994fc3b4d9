"""Globs as regular expressions: they match what SQLite's globs match, on every engine."""

import re
import sqlite3
from contextlib import closing
from itertools import product

import psycopg

from relay.store.globs import regular_expression
from tests.store.places import PostgresPlace

GLOBS = (
    "video.*", "*", "?", "a[bc]d", "a[^b]", "[]x]", "[^]]", "[a-c]*", "x\\y", "[z-a]", "[^z-a]",
    "[", "a[", "[]", "a]b", "[[:alpha:]]", "[a\\]", "*.*", "a|b", "(a)", "[--0]", "[*]", "[a-]",
    "[-a]", "***a", "(?i)A", "[.a.]", "[[=a=]]", "[[.-.]]", "[a-c-e]", "\u00e4*", "[\u00e4-\u00fc]",
    "#", "a b", "a{1}", "[\\d]", "&", "~", "\n", "a$", "^a",
)  # fmt: skip
TEXTS = (
    "video.ready", "a", "abd", "acd", "ad", "ax", "]", "x", "b", "x\\y", "[", "a[", "a]b", "\\",
    "[:", "p]", "a|b", "(a)", ".", "-", "*", "?", "", "a\nb", "***a", "(?i)A", "A", "d", "e",
    "\u00e4", "\u00f6", "#", "a b", "a{1}", "1", "&", "~", "\n", "a\n", "a$", "^a",
)  # fmt: skip


def test_a_glob_matches_the_same_texts_on_every_engine(postgres_place: PostgresPlace) -> None:
    pairs = list(product(GLOBS, TEXTS))
    with closing(sqlite3.connect(":memory:")) as db:
        expected = [bool(db.execute("SELECT ? GLOB ?", (t, g)).fetchone()[0]) for g, t in pairs]
    assert any(expected)
    expressions = [regular_expression(glob) for glob, _ in pairs]
    python = [
        re.fullmatch(expression, text) is not None
        for expression, (_, text) in zip(expressions, pairs, strict=True)
    ]
    assert python == expected
    with psycopg.connect(postgres_place.server.dsn) as connection:
        rows = connection.execute(
            'SELECT text COLLATE "C" ~ expression'
            " FROM unnest(%s::text[], %s::text[]) WITH ORDINALITY AS t (text, expression, n)"
            " ORDER BY n",
            ([text for _, text in pairs], expressions),
        )
        assert [matches for (matches,) in rows] == expected


def test_a_set_is_negated_as_in_routes_too() -> None:
    assert re.fullmatch(regular_expression("[!a]b"), "cb")
    assert not re.fullmatch(regular_expression("[!a]b"), "ab")
