"""Private names of dependencies in use, and undocumented ones of uvicorn: a missing one fails here.

Those of the brokers' clients are in sinks/test_client_internals.py.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import aiosqlite
import pytest
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

import relay
from relay.receiver import app
from relay.store.sqlite import driver
from tests.project.test_project import CAPPED
from tests.sinks.test_client_internals import NATS, inner_names, is_inner, parse

DRIVER = {"_conn", "_execute", "_thread"}

FOREIGN = {
    "sinks/nats/connection.py": NATS,
    "store/sqlite/driver.py": DRIVER,
}
"""Every private name of a dependency, by the module that uses it."""

PUBLIC = {"_exit", "_replace"}
"""Documented in spite of the underscore: `os` and `collections.namedtuple`."""

ROOT = Path(relay.__file__).parent


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.Module]:
    """Every module of the relay, by its path."""
    return {str(file.relative_to(ROOT)): ast.parse(file.read_text()) for file in ROOT.rglob("*.py")}


def test_uvicorns_proxy_middleware_has_its_trusted_hosts() -> None:
    middleware = ProxyHeadersMiddleware(app._nothing, ["10.0.0.0/8", "::1"])
    assert asked(parse(app), "self._terms.proxies") == {"trusted_hosts"}
    assert "10.1.2.3" in middleware.trusted_hosts
    assert "192.0.2.1" not in middleware.trusted_hosts


async def test_aiosqlite_has_every_inner_part_that_is_used() -> None:
    async with aiosqlite.connect(":memory:") as made:
        assert [name for name in sorted(DRIVER) if not hasattr(made, name)] == []
        assert await made._execute(lambda: 7) == 7  # type: ignore[no-untyped-call]
    assert inner_names(parse(driver)) & DRIVER == DRIVER


def test_no_other_private_name_of_a_dependency_is_used(trees: dict[str, ast.Module]) -> None:
    ours = {name for tree in trees.values() for name in defined(tree)}
    found = defaultdict[str, set[str]](set)
    for place, tree in trees.items():
        own = defined(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and is_inner(node.attr):
                is_own = node.attr in (ours if ast.unparse(node.value) == "self" else own)
                if not is_own and node.attr not in PUBLIC:
                    found[place].add(node.attr)
    unlisted = {place: names - FOREIGN.get(place, set()) for place, names in found.items()}
    assert {place: names for place, names in unlisted.items() if names} == {}


def test_private_modules_of_dependencies_are_imported_only_where_they_are_listed(
    trees: dict[str, ast.Module],
) -> None:
    found = {
        (place, module.partition(".")[0])
        for place, tree in trees.items()
        for module in imported(tree)
        if any(is_inner(part) for part in module.split("."))
    }
    assert found == set()


def test_a_dependency_with_private_or_undocumented_names_in_use_has_an_upper_bound() -> None:
    assert {"aiosqlite", "uvicorn"} <= CAPPED


def asked(tree: ast.Module, of: str) -> set[str]:
    """Collect the attributes read from an expression, as it is written."""
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == of
    }


def defined(tree: ast.Module) -> set[str]:
    """Collect the names that are defined, or set on `self`."""
    return {name for node in ast.walk(tree) for name in _defines(node)}


def _defines(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
            yield name
        case ast.Name(id=name, ctx=ast.Store()):
            yield name


def imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{each.name}" for each in node.names if not node.level)
        elif isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
