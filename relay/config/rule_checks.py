"""Reads a `when` as JMESPath does, and finds what it cannot mean, whatever event arrives.

Names and types are those of the sample events; the names of form fields are free.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from relay.config.event_shapes import FLAG, TYPES, UNKNOWN, Shape, envelope
from relay.config.rule_wording import (
    article,
    in_its_type,
    is_text,
    no_name,
    plain,
    read_as_name,
    shown,
)
from relay.core.event import KINDS, MILESTONES
from relay.core.expressions import Expression, Node, call_fault
from relay.core.setting_errors import suggestion

_OVER_ITEMS = frozenset(
    {"index_expression", "flatten", "projection", "value_projection", "filter_projection"}
)
_VALUES = {"event": ("kind", KINDS), "data.milestone": ("milestone", MILESTONES)}


class RuleFindings(NamedTuple):
    """Messages about one rule."""

    mistakes: list[str]
    """Certain, whatever event arrives."""
    warnings: list[str]
    """Certain for the documented kinds only."""


def examine(when: str) -> RuleFindings:
    """Read a rule that compiles; raises InvalidRule for an unknown function."""
    walk = _RuleWalk()
    parsed = Expression(when).parsed
    walk.shape(parsed, envelope())
    walk.operand(parsed)
    return RuleFindings(list(dict.fromkeys(walk.mistakes)), list(dict.fromkeys(walk.warnings)))


class _RuleWalk:
    """One walk over a parsed rule, along which the shape of the current value is known."""

    def __init__(self) -> None:
        self.mistakes: list[str] = []
        self.warnings: list[str] = []

    def shape(self, node: Node, current: Shape) -> Shape:
        """Examine a node, and return the shape of its value."""
        match node["type"]:
            case "field":
                return self._member(node["value"], current)
            case "current" | "identity":
                return current
            case "subexpression":
                return self._path(node, current)
            case "pipe":
                return self._along(node["children"], current)
        self._examine(node, current)
        return FLAG if node["type"] in {"comparator", "not_expression"} else UNKNOWN

    def _examine(self, node: Node, current: Shape) -> None:
        """Examine a node whose value has no known shape."""
        children = node["children"]
        match node["type"]:
            case "comparator":
                self._compare(node, current)
            case "function_expression":
                self._call(node, current)
            case "expref":
                self._all(children, UNKNOWN)
            case type_ if type_ in _OVER_ITEMS:
                self.shape(children[0], current)
                self._all(children[1:], UNKNOWN)
            case type_:
                if type_ in {"or_expression", "and_expression"}:
                    for child in children:
                        self.operand(child)
                self._all(children, current)

    def operand(self, node: Node) -> None:
        """Examine what a rule, or a side of `||` and `&&`, consists of."""
        text = node.get("value")
        if node["type"] == "literal" and isinstance(text, str) and text:
            value = shown(text)
            self.mistakes.append(
                f"{value} alone is always true: compare it with a value, as in event == {value}"
            )

    def _all(self, nodes: Iterable[Any], current: Shape) -> None:
        # The bounds of a slice are numbers, or None.
        for node in nodes:
            if isinstance(node, dict):
                self.shape(node, current)

    def _along(self, nodes: Iterable[Node], current: Shape) -> Shape:
        for node in nodes:
            current = self.shape(node, current)
        return current

    def _path(self, node: Node, current: Shape) -> Shape:
        nodes, text = node["children"], _as_text(node)
        if text in KINDS and _reaches(node, current) is None:
            self.mistakes.append(read_as_name(text))
            return UNKNOWN
        if nodes[0]["type"] == "not_expression":
            self.mistakes.append(
                "! stands for the first name after it only, so that the rest is never found: put "
                "the whole path in brackets, as in !(data.completed)"
            )
            self.shape(nodes[0], current)
            return UNKNOWN
        return self._along(nodes, current)

    def _member(self, name: str, current: Shape) -> Shape:
        if current.members is not None and name in current.members:
            shape: Shape = current.members[name]
            return shape
        if current.members is not None and not current.path:
            self.mistakes.append(read_as_name(name) if is_text(name) else no_name(name))
        elif current.members is not None:
            hint = suggestion(name, current.members)
            self.warnings.append(
                f"no event of the video service has {current.path}.{plain(name)}{hint}"
            )
        elif current is FLAG:
            self.mistakes.append(
                "| passes on true or false, which holds no names: write && for and, || for or"
            )
        elif current.types:
            self.warnings.append(
                f"{current.path} holds no names, so {current.path}.{plain(name)} is never found"
            )
        return UNKNOWN

    def _compare(self, node: Node, current: Shape) -> None:
        left, right = node["children"]
        if left["type"] == right["type"] == "literal":
            self.mistakes.append(
                "compares two fixed values, whatever the event: write a name such as event without "
                "single quotes and backticks"
            )
            return
        shapes = self._beside(node["children"], current)
        if node["value"] in {"eq", "ne"}:
            for shape, other in zip(shapes, (right, left), strict=True):
                if other["type"] == "literal":
                    self._value(shape, other["value"])

    def _beside(self, nodes: list[Node], current: Shape) -> list[Shape]:
        """Examine operands or arguments: an unknown name beside a known one is meant as a text."""
        known = [_reaches(node, current) for node in nodes]
        shapes = []
        for index, node in enumerate(nodes):
            text = _as_text(node)
            others = [each for at, each in enumerate(known) if at != index and each is not None]
            if known[index] is None and text is not None and others and not current.path:
                types = others[0].types
                self.mistakes.append(read_as_name(text, is_number="number" in types))
                shapes.append(UNKNOWN)
            else:
                shapes.append(self.shape(node, current))
        return shapes

    def _value(self, shape: Shape, value: object) -> None:
        """Examine a fixed value that something is compared with."""
        type_ = TYPES.get(type(value))
        if shape.members and shape.path and type_ is not None:
            self.warnings.append(
                f"{shape.path} holds names, and never equals {article(type_)}: compare one of "
                f"them, as in {shape.path}.{next(iter(shape.members))}"
            )
        if not shape.types or type_ is None:
            return
        if type_ not in shape.types:
            is_ = " or ".join(sorted(shape.types - {"nothing"}))
            self.warnings.append(
                f"{shape.path} is {article(is_)}, which never equals {article(type_)}"
                f"{in_its_type(value, shape.types)}"
            )
        elif shape.path in _VALUES and isinstance(value, str):
            what, values = _VALUES[shape.path]
            if value not in values:
                globs = "; a comparison takes no globs: use starts_with()" if "*" in value else ""
                hint = globs or suggestion(value, values)
                self.warnings.append(f"{shown(value)} is no {what} of the video service{hint}")

    def _call(self, node: Node, current: Shape) -> None:
        name, arguments = node["value"], node["children"]
        fault = call_fault(name, len(arguments))
        if fault is not None:
            self.mistakes.append(fault)
        self._beside(arguments, current)


def _reaches(node: Node, current: Shape) -> Shape | None:
    """Return the shape of a value; None for a fixed one, and below an unknown first name."""
    first = node
    while first["type"] == "subexpression":
        first = first["children"][0]
    is_unknown = first["type"] == "field" and first["value"] not in (
        current.members or {first["value"]}
    )
    return None if is_unknown or node["type"] == "literal" else _RuleWalk().shape(node, current)


def _as_text(node: Node) -> str | None:
    """Return the text of a name, or of names with dots; None for any other node."""
    match node["type"]:
        case "field":
            return str(node["value"])
        case "subexpression":
            parts = [_as_text(child) for child in node["children"]]
            return None if None in parts else ".".join(filter(None, parts))
    return None
