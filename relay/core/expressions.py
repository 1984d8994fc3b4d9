"""JMESPath expressions of the config: checked at the start, and evaluated within bounds (pure).

JMESPath has neither loops nor recursion, so a text that repeats its input is its only way to run
away.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import jmespath
import jmespath.exceptions
from jmespath.functions import Functions

from relay.core.errors import InvalidRule
from relay.core.setting_errors import suggestion

GROWTH_MAX = 100
"""Times that an expression may repeat its input: `[@,@][] | [@,@][] | ...` doubles it each time."""

# jmespath raises a plain TypeError when it compares a number with a text, and recurses into long
# expressions and deep documents.
FAILURES = (
    jmespath.exceptions.JMESPathError,
    TypeError,
    ValueError,
    ArithmeticError,
    RecursionError,
)
"""All that `Expression.is_true` raises for a value that the expression cannot work on."""

Node = Mapping[str, Any]


class Expression:
    """A compiled expression; `text` is what the operator wrote."""

    def __init__(self, text: str) -> None:
        """Raise InvalidRule if the text is not a JMESPath expression."""
        self.text = text
        self._compiled = _compile(text)

    @property
    def parsed(self) -> Node:
        """The expression as a tree of nodes, each with its `type`."""
        tree: Node = self._compiled.parsed
        return tree

    def is_true(self, value: Any) -> bool:
        """Evaluate it; null, false and empty values are false, 0 is true, as JMESPath has it."""
        result = self._compiled.search(value)
        return result is not None and result is not False and result not in ("", [], {})

    def check(self) -> None:
        """Raise InvalidRule where a call cannot be right, or the result could be huge."""
        try:
            for node in _nodes(self.parsed):
                if node["type"] == "function_expression":
                    fault = call_fault(node["value"], len(node["children"]))
                    if fault is not None:
                        raise InvalidRule(fault)
            if _growth(self.parsed) > GROWTH_MAX:
                raise InvalidRule(f"may repeat its input more than {GROWTH_MAX} times")
        except RecursionError:
            raise InvalidRule(_TOO_DEEP) from None

    @property
    def compares_names(self) -> bool:
        """Whether two names are compared, of which one is likely meant as a value."""
        comparisons = (node for node in _nodes(self.parsed) if node["type"] == "comparator")
        return any(
            all(side["type"] in {"field", "subexpression"} for side in node["children"])
            for node in comparisons
        )


def call_fault(name: str, count: int) -> str | None:
    """Return why a function cannot take this many arguments; None if it can.

    Raises InvalidRule for an unknown function.
    """
    spec = Functions.FUNCTION_TABLE.get(name)
    if spec is None:
        hint = suggestion(name, Functions.FUNCTION_TABLE)
        raise InvalidRule(f"unknown function {name}(){hint}")
    signature = spec["signature"]
    is_variadic = bool(signature and signature[-1].get("variadic"))
    least = len(signature)
    if count == least or (count > least and is_variadic):
        return None
    takes = f"{least} or more" if is_variadic else str(least)
    plural = "" if takes == "1" else "s"
    return f"{name}() takes {takes} argument{plural}, not {count}"


_TOO_DEEP = "nested too deeply"


def _nodes(node: Node) -> Iterator[Node]:
    yield node
    for child in _children(node):
        yield from _nodes(child)


def _children(node: Node) -> list[Node]:
    # The bounds of a slice are numbers, or None.
    return [child for child in node["children"] if isinstance(child, dict)]


def _growth(node: Node) -> int:
    """Return how many times as large as its input the node's value may be."""
    parts = [_growth(child) for child in _children(node)]
    match node["type"]:
        case "literal":
            return 1 + str(node["value"]).count(",")
        case "multi_select_list" | "multi_select_dict":
            return sum(parts)
        case "function_expression":
            # A text of JSON is longer than its values, by its escapes.
            return 2 * max(1, sum(parts))
        case "or_expression" | "and_expression" | "comparator":
            return max(parts)
    product = 1
    for part in parts:
        product *= part
    return product


def _compile(text: str) -> Any:
    try:
        return jmespath.compile(text)
    except jmespath.exceptions.JMESPathError as error:
        raise InvalidRule(_cause(error)) from None
    except RecursionError:
        raise InvalidRule(_TOO_DEEP) from None


def _cause(error: jmespath.exceptions.JMESPathError) -> str:
    """Describe the fault and its position; the parser's own message is about its token types."""
    match error:
        case jmespath.exceptions.IncompleteExpressionError():
            return "its end is missing"
        case jmespath.exceptions.LexerError():
            return f"{error.message} at column {error.lexer_position + 1}"
        case jmespath.exceptions.ParseError():
            return f"unexpected {error.token_value} at column {error.lex_position + 1}"
    return "it is empty"
