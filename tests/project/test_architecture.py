"""One subject, one place: no module is a fragment, and the name of a class means one thing."""

import ast
import io
import tokenize
from collections import defaultdict
from pathlib import Path

import pytest

RELAY = Path(__file__).parents[2] / "relay"

CODE_MIN = 25
"""Lines without blank ones, comments and docstrings."""

SMALL = {
    "__main__": "prepared before it loads",
    "admin/api/audit": "each group of operations has a file",
    "admin/api/status": "each group of operations has a file",
    "core/addresses": "one pattern for the page and the store",
    "core/api_settings": "its client knows nothing else of a source",
    "core/csv_table": "for page, commands and sandbox alike",
    "core/large_bodies": "in every room alike",
    "core/minutes": "values that store, API and page share",
    "core/totals": "what store and metrics exchange",
    "outbound/connection_health": "whatever the sink",
    "outbound/sink_url": "of any sink that has one",
    "outbound/visible_text": "in Slack's messages and in templates alike",
    "sandbox/errors": "beneath all else in it",
    "sandbox/services": "so that its API need not know who makes them",
    "sinks/kafka/batch": "shared by all parts of the sink",
    "store/backup": "apart from the engines that make them",
    "store/copy_result": "which few processes load",
    "store/ordering": "the same in all engines",
    "store/paused_sinks": "a subject of its own",
    "store/postgres/backup": "which its own programs make",
    "store/postgres/settings": "a config is read without the engine",
    "store/postgres/text": "in a form that PostgreSQL stores",
    "store/sqlite/bulk": "which SQLite executes without Python's lock",
    "store/sqlite/handover": "straight to their dispatchers, without a read",
    "store/sqlite/quarantine": "the engine's part of the subject",
    "store/sqlite/settings": "a config is read without the engine",
    "store/sqlite/totals": "stored with each event",
    "store/totals": "in memory as in the store",
}
"""Modules with less code, and why they are modules: words of the first line of each."""

SHARED = {
    "Change": "of a sink's state, of an erasure's report, and of a row of the audit log",
    "Connection": "one of each engine, in its own module",
    "Cursor": "of a statement, and of an export that goes on",
    "Database": "what a subject asks of a connection, and PostgreSQL's, which does more",
    "Fence": "one acquisition of a sink, as it is planned and as it is stored",
    "View": "a step of a person in an export, and a row of the audience",
}
"""Names that several classes have beside those of one kind in sibling folders, and of what."""

_NO_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    tokenize.ENDMARKER,
}
_DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def is_small(source: str, tree: ast.Module) -> bool:
    # Most modules need no count, which takes long.
    if source.count("\n") > 8 * CODE_MIN:
        return False
    documented: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node) is not None:
            text = node.body[0]
            documented.update(range(text.lineno, (text.end_lineno or text.lineno) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - documented) < CODE_MIN


@pytest.fixture(scope="module")
def trees() -> dict[Path, ast.Module]:
    return {file.relative_to(RELAY): ast.parse(file.read_text()) for file in RELAY.rglob("*.py")}


def test_a_module_has_25_lines_of_code_or_says_why_it_is_one(
    trees: dict[Path, ast.Module],
) -> None:
    unexplained = {
        str(file)
        for file, tree in trees.items()
        if file.name != "__init__.py"
        and is_small((RELAY / file).read_text(), tree)
        and SMALL.get(str(file.with_suffix("")), "\n") not in _first_line(tree)
    }
    assert unexplained == set()


def _first_line(tree: ast.Module) -> str:
    return (ast.get_docstring(tree) or "").partition("\n")[0]


def test_the_name_of_a_class_means_one_thing(trees: dict[Path, ast.Module]) -> None:
    """The sandbox has the names of the service that it stands in for, whatever these are here."""
    files = defaultdict[str, set[Path]](set)
    for file, tree in trees.items():
        if file.parts[0] != "sandbox":
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    files[node.name].add(file)
    unlike = {
        name: sorted(map(str, found))
        for name, found in files.items()
        if len(found) > 1 and not _are_siblings(found) and name not in SHARED
    }
    assert unlike == {}


def _are_siblings(files: set[Path]) -> bool:
    """Whether modules of one name are in neighbouring folders, as those of engines and of sinks."""
    return len({(file.name, file.parent.parent) for file in files}) == 1
