"""What the page is made of is used: templates, their macros, and the classes of the style."""

import re
from collections.abc import Iterator
from importlib.resources import files

import pytest
from jinja2 import nodes

from relay.admin.page import frame
from relay.admin.page.frame import FAILED
from relay.admin.page.view import PageView
from relay.admin.page.views import SECTIONS

PAGE = files("relay.admin.page")
SOURCES = {each.name: each.read_text() for each in (PAGE / "templates").iterdir() if each.is_file()}
BY_LOGIN = {"again.html", "login.html", "refused.html"}
"""Templates that are rendered without a view, for those who are not logged in."""


Trees = dict[str, nodes.Template]


@pytest.fixture(scope="module")
def trees() -> Trees:
    """Every template as Jinja parses it, by its name."""
    return {name: frame.environment().parse(source) for name, source in SOURCES.items()}


def used_by(tree: nodes.Template) -> Iterator[str]:
    for node in tree.find_all((nodes.Extends, nodes.Include, nodes.FromImport)):
        assert isinstance(node, nodes.Extends | nodes.Include | nodes.FromImport)
        assert isinstance(node.template, nodes.Const)
        yield node.template.value


def imported(tree: nodes.Template) -> set[str]:
    """Names that a template takes from others."""
    imports = tree.find_all(nodes.FromImport)
    return {name for each in imports for name in each.names if isinstance(name, str)}


def test_every_template_is_rendered_by_a_view_or_used_by_another_template(trees: Trees) -> None:
    routes = (route for section in SECTIONS for route in section.routes)
    views = {route.template for route in routes if isinstance(route, PageView)}
    used = {name for tree in trees.values() for name in used_by(tree)}
    assert views | BY_LOGIN | {FAILED.template} | used == trees.keys()


def test_the_filter_bar_exists_once() -> None:
    assert [name for name, source in SOURCES.items() if "data-filter" in source] == [
        "filter_bar.html"
    ]


@pytest.mark.parametrize("name", SOURCES)
def test_a_template_uses_every_macro_that_it_imports(trees: Trees, name: str) -> None:
    called = {each.name for each in trees[name].find_all(nodes.Name) if each.ctx == "load"}
    assert imported(trees[name]) <= called


@pytest.mark.parametrize("name", SOURCES)
def test_no_count_is_printed_without_its_separators(trees: Trees, name: str) -> None:
    for printed in trees[name].find_all((nodes.Output, nodes.Concat)):
        assert isinstance(printed, nodes.Output | nodes.Concat)
        filters = [each.name for each in printed.nodes if isinstance(each, nodes.Filter)]
        assert not {"length", "count", "sum"} & set(filters), printed.lineno


def test_every_macro_is_used_with_each_of_its_parameters(trees: Trees) -> None:
    everything = "".join(SOURCES.values())
    for tree in trees.values():
        for macro in tree.find_all(nodes.Macro):
            assert len(re.findall(rf"\b{macro.name}\(", everything)) > 1, macro.name
            read = {each.name for each in macro.find_all(nodes.Name) if each.ctx == "load"}
            assert {each.name for each in macro.args} <= read, macro.name


def test_every_class_of_the_style_is_used() -> None:
    style = re.sub(r"/\*.*?\*/", "", (PAGE / "assets/page.css").read_text(), flags=re.DOTALL)
    selectors = re.sub(r"\{[^{}]*\}", "{}", style)
    classes = set(re.findall(r"\.([a-z][\w-]*)", selectors))
    written = "".join(SOURCES.values()) + (PAGE / "assets/page.js").read_text()
    # Tones are chosen by values, such as `c-{{ bar.tone }}`.
    tones = {each for each in classes if each.startswith("c-")}
    unused = {
        each for each in classes - tones if not re.search(rf"(?<![\w-]){each}(?![\w-])", written)
    }
    assert unused == set()
