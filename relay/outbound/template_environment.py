"""The environment of operators' templates: what a name, an operation and a loop may do in it.

Data wins over methods, which can only be called. What an operation makes is measured beforehand,
because Jinja's sandbox lets a value of an event decide how much it makes.
"""

from collections.abc import Callable
from typing import Any

from jinja2 import StrictUndefined, Template, Undefined, nodes, pass_context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from relay.core.errors import InvalidTemplate
from relay.outbound import template_growth as growth

OUTPUT_MAX = 65_536
"""Maximum length of all outputs of a rendering, and of a repetition, in characters or items."""

LOOPS_MAX = 5_000
"""Maximum number of times that all loops of a template together may run for one event."""

GROWN_MAX = 4 * 1024 * 1024
"""Maximum size of one value that an operation makes, in characters or items.

A text of an event may be larger than an output, and be cut afterwards."""

GROWN_TOTAL_MAX = 64 * GROWN_MAX
"""The same for all operations of one rendering: what takes a tenth of a second or two."""

BUDGET = "_budget"
"""In a template's context: its `RenderBudget`. No author can use the name."""


_JINJAS_OWN = frozenset({"_block_vars", "_loop_vars"})
"""Names of arguments that compiled templates add to calls within blocks and loops."""


class RenderBudget:
    """What one rendering may still do, by however many templates."""

    def __init__(self) -> None:
        self._runs = 0
        self._grown = 0
        self._written = 0

    def run(self) -> None:
        """Count one more run of a loop."""
        self._runs += 1
        if self._runs > LOOPS_MAX:
            raise InvalidTemplate(f"its loops run more than {LOOPS_MAX} times")

    def grow(self, size: int) -> None:
        """Count a value of this size before it is made."""
        self._grown += max(size, 0)
        if size > GROWN_MAX:
            raise InvalidTemplate(f"it makes more than {GROWN_MAX} characters or items at once")
        if self._grown > GROWN_TOTAL_MAX:
            raise InvalidTemplate(f"it makes more than {GROWN_TOTAL_MAX} characters or items")

    def write(self, size: int) -> None:
        """Count the characters of an output."""
        self._written += size
        if self._written > OUTPUT_MAX:
            raise InvalidTemplate(f"the output is longer than {OUTPUT_MAX} characters")


class _Missing(StrictUndefined):
    """Fails at every use with the bare name; the template decides whether it may be shown.

    A member of a missing value is that missing value, so that `| default` ends any path.
    """

    def __init__(self, hint: str | None = None, **what: Any) -> None:
        super().__init__(str(what["name"]) if "name" in what else hint, **what)

    def __getitem__(self, _: Any) -> Any:
        return self


class _Values(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, in which no attribute is a method: its text is an address in memory."""

    def __init__(self, **options: Any) -> None:
        super().__init__(undefined=_Missing, keep_trailing_newline=False, **options)

    def getattr(self, obj: Any, attribute: str) -> Any:
        return self.getitem(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(obj, dict):
            try:
                return obj[argument]
            except (LookupError, TypeError):
                return self.undefined(obj=obj, name=argument)
        value = super().getitem(obj, argument)
        if callable(value) and not isinstance(value, Undefined):
            return self.undefined(obj=obj, name=argument)
        return value

    def method(self, obj: Any, name: str) -> Any:
        """Return the function of a call; a method wins over data."""
        return super().getattr(obj, name)


class TemplateSandbox(_Values):
    """Adds the limits; `finalize` takes the value of every expression that is output."""

    intercepted_binops = frozenset({"*", "**", "+", "%"})

    def __init__(self, finalize: Callable[..., str]) -> None:
        super().__init__(finalize=finalize)
        plain = _Values()
        self.filters |= {name: _bounded(name, plain) for name in growth.FILTERS}
        self.filters |= {each.__name__: each for each in (_run, _method, _concatenated)}
        self.globals["lipsum"] = _bounded_lipsum(plain)

    def from_tree(self, tree: nodes.Template) -> Template:
        """Compile a parsed template with the limits."""
        return self.from_string(_Bounded().visit(tree).set_environment(self))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        match operator:
            case "+":
                context[BUDGET].grow(growth.added(left, right))
            case "%" if isinstance(left, str):
                context[BUDGET].grow(growth.percent(left, right))
            case "*" | "**":
                _check_product(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        # The sandbox wraps `format`.
        method = getattr(obj, "__wrapped__", obj)
        name, owner = getattr(method, "__name__", ""), getattr(method, "__self__", None)
        if name in growth.METHODS and isinstance(owner, str | bytes | int):
            if name in growth.OF_ITEMS:
                args = tuple(list(each) for each in args)
            named = {key: value for key, value in kwargs.items() if key not in _JINJAS_OWN}
            context[BUDGET].grow(growth.METHODS[name](owner, *args, **named))
        return super().call(context, obj, *args, **kwargs)


def _check_product(operator: str, left: Any, right: Any) -> None:
    sizes = [len(side) if hasattr(side, "__len__") else abs(side) for side in (left, right)]
    repeats = operator == "*" and any(hasattr(side, "__len__") for side in (left, right))
    if (repeats or operator == "**") and sizes[0] * sizes[1] > OUTPUT_MAX:
        raise InvalidTemplate(f"a repetition or power beyond {OUTPUT_MAX}")


def _bounded(name: str, plain: _Values) -> Callable[..., Any]:
    """Return a filter that measures before it works as in the plain environment."""

    @pass_context
    def bounded(context: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        if name in growth.OF_ITEMS:
            value = list(value)
        context[BUDGET].grow(growth.FILTERS[name](value, *args, **kwargs))
        return plain.call_filter(name, value, args, kwargs, context)

    return bounded


def _bounded_lipsum(environment: _Values) -> Callable[..., str]:
    plain: Any = environment.globals["lipsum"]

    @pass_context
    def lipsum(context: Any, *args: Any, **kwargs: Any) -> str:
        context[BUDGET].grow(growth.lipsum(*args, **kwargs))
        text: str = plain(*args, **kwargs)
        return text

    return lipsum


# Filters with a context, because Jinja evaluates a constant's other filters beforehand.


@pass_context
def _run(context: Any, _: Any) -> bool:
    """Count one more run of a loop; always true, for a loop's condition."""
    context[BUDGET].run()
    return True


@pass_context
def _method(context: Any, obj: Any, name: str) -> Any:
    return context.environment.method(obj, name)


@pass_context
def _concatenated(context: Any, *parts: Any) -> str:
    texts = [str(part) for part in parts]
    context[BUDGET].grow(growth.concatenated(*texts))
    return "".join(texts)


def _filter(node: nodes.Expr, applied: Callable[..., Any], *arguments: nodes.Expr) -> nodes.Filter:
    name, line = applied.__name__, node.lineno
    return nodes.Filter(node, name, list(arguments), [], None, None, lineno=line)


class _Bounded(NodeTransformer):
    """Makes statements that output the result of a call do so as an expression does.

    Every loop counts how often it runs, methods are looked up only where they are called, and
    texts are concatenated within the limit.
    """

    def visit_For(self, node: nodes.For) -> nodes.Node | list[nodes.Node]:  # noqa: N802
        run = _filter(nodes.Const(None, lineno=node.lineno), _run)
        # What the condition leaves out takes time, too.
        node.test = run if node.test is None else nodes.And(run, node.test, lineno=node.lineno)
        return self._captured(node) if node.recursive else self.generic_visit(node)

    def visit_Call(self, node: nodes.Call) -> nodes.Node:  # noqa: N802
        if isinstance(node.node, nodes.Getattr):
            name = nodes.Const(node.node.attr, lineno=node.lineno)
            node.node = _filter(node.node.node, _method, name)
        return self.generic_visit(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        first, *others = node.nodes
        return self.generic_visit(_filter(first, _concatenated, *others))

    def _captured(self, node: nodes.Node) -> list[nodes.Node]:
        inner, line = self.generic_visit(node), node.lineno
        target, value = nodes.Name("_captured", "store"), nodes.Name("_captured", "load")
        return [
            nodes.AssignBlock(target, None, [inner], lineno=line),
            nodes.Output([value], lineno=line),
        ]

    visit_FilterBlock = visit_CallBlock = _captured  # noqa: N815  names that Jinja looks up
