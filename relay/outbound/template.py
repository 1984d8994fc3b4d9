"""What an operator's template may do, and how its mistakes read (pure).

Templates come from the config only, never from an event: the sandbox bounds mistakes, not enemies
(dependencies.md, section 4).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from traceback import walk_tb
from typing import Any

import orjson
from jinja2 import StrictUndefined, TemplateSyntaxError, UndefinedError, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.meta import find_undeclared_variables
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from relay.core.errors import InvalidTemplate
from relay.core.event import KINDS, Event

OUTPUT_MAX = 65_536
"""The longest output and the longest repetition, in characters or members."""

NAMES = ("createdAt", "data", "event", "id", "source")
"""What a template can speak of: the envelope's four fields, and the source's name in the config."""

_OF_A_KIND = frozenset({"event", "source"})
"""What speaks of these only writes the same for every event of a kind and a source."""

Escape = Callable[[str], str]


class Value(str):
    """The output of an expression; every other piece of an output is its author's own text."""

    __slots__ = ()

    def __str__(self) -> str:
        """Jinja asks for the text of each output, and is to hand on what it is as well."""
        return self


Pieces = Iterable[str]
"""An output in its order: literal texts of the author's, and between them values."""

Write = Callable[[Pieces], Iterator[str]]
"""How the values among the pieces are escaped."""


def escaping(escape: Escape) -> Write:
    """Escape every value in the same way, wherever it lands."""
    return lambda pieces: (escape(piece) if isinstance(piece, Value) else piece for piece in pieces)


# They escape for HTML, or mark a text as escaped already.
_BARRED_FILTERS = ("e", "escape", "forceescape", "safe", "urlize", "xmlattr")


class Template:
    """One compiled template.

    What any expression outputs is a value, which `write` escapes; only literal text is not.
    A `set` block, a macro, a `call` or `filter` block and a recursive loop make values of theirs.
    """

    def __init__(self, source: str, *, write: Write = iter) -> None:
        """Raises InvalidTemplate with the line and what is wrong there."""
        self._source = source
        self._write = write
        self._template, names = _compile(source, _environment())
        self._is_same_for_kind = names is not None and names <= _OF_A_KIND
        self._known: dict[tuple[str, str], str] = {}

    def render(self, event: Event) -> str:
        """Fill in one event; raises InvalidTemplate with a text that holds no value of it."""
        if not self._is_same_for_kind or event.kind not in KINDS:
            return self._try(event)
        place = (event.kind, event.source)
        if place not in self._known:
            self._known[place] = self._try(event)
        return self._known[place]

    def _try(self, event: Event) -> str:
        try:
            return self._fill(event)
        except Exception as error:  # noqa: BLE001  a template can raise whatever Python can
            reason = _at_line(_line(error), self._reason(error))
        # Out here, because an error raised in the handler carries the first one and its values.
        raise InvalidTemplate(reason)

    def _fill(self, event: Event) -> str:
        document = event.document()
        names = {name: document.get(name) for name in NAMES} | {"source": event.source}
        written: list[str] = []
        size = 0
        for piece in self._write(self._template.generate(names)):
            written.append(piece)
            size += len(piece)
            if size > OUTPUT_MAX:
                raise InvalidTemplate(f"the output is longer than {OUTPUT_MAX} characters")
        return "".join(written)

    def _reason(self, error: Exception) -> str:
        match error:
            case InvalidTemplate():
                return str(error)
            case UndefinedError(message=str(name)) if name and name in self._source:
                return f"{name} is missing in this event: write | default('') where it may be"
            case UndefinedError():
                return "something is missing in this event: write | default('') where it may be"
            case SecurityError():
                return "it reaches for something that templates may not use"
        # Python's own texts quote the values that they stumble over.
        return f"it fails with {type(error).__name__}"


class _Missing(StrictUndefined):
    """Fails at every use; says the bare name, for `Template` to judge whether it may be shown."""

    @property
    def _undefined_message(self) -> str:
        return "" if self._undefined_name is None else str(self._undefined_name)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, with a bound on the one thing that it lets through: huge repetition."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        sizes = [len(side) if hasattr(side, "__len__") else abs(side) for side in (left, right)]
        repeats = operator == "*" and any(hasattr(side, "__len__") for side in (left, right))
        if (repeats or operator == "**") and sizes[0] * sizes[1] > OUTPUT_MAX:
            raise InvalidTemplate(f"a repetition or power beyond {OUTPUT_MAX}")
        return super().call_binop(context, operator, left, right)


class _Capture(NodeTransformer):
    """Have statements that write the result of a call output it as an expression does."""

    def visit_For(self, node: nodes.For) -> nodes.Node | list[nodes.Node]:  # noqa: N802
        return self._captured(node) if node.recursive else self.generic_visit(node)

    def _captured(self, node: nodes.Node) -> list[nodes.Node]:
        inner, line = self.generic_visit(node), node.lineno
        target, value = nodes.Name("_captured", "store"), nodes.Name("_captured", "load")
        return [
            nodes.AssignBlock(target, None, [inner], lineno=line),
            nodes.Output([value], lineno=line),
        ]

    visit_FilterBlock = visit_CallBlock = _captured  # noqa: N815  names that Jinja looks up


@cache
def _environment() -> _Sandbox:
    # With a context, because Jinja would take the value of a constant expression for literal text.
    @pass_context
    def finalize(_: Any, value: Any) -> Value:
        return Value(_text(value))

    environment = _Sandbox(undefined=_Missing, finalize=finalize, keep_trailing_newline=False)
    for name in _BARRED_FILTERS:
        environment.filters.pop(name)
    # Jinja's own marks its output as escaped for HTML.
    environment.filters["tojson"] = _json
    return environment


def opens_with(source: str, name: str) -> bool:
    """Whether a template's output can begin with a value of `name`; False where it is none."""
    try:
        tree = _environment().parse(source)
    except (TemplateSyntaxError, RecursionError):
        return False
    names = list(tree.find_all(nodes.Name))
    if all(node.name != name for node in names):
        return False
    # What a template keeps under a name of its own may hold it.
    held_by = {name, *(node.name for node in names if node.ctx != "load")}
    return any(
        isinstance(part, nodes.Name) and part.name in held_by
        for first in _first(tree.body)
        for part in (first, *first.find_all(nodes.Name))
    )


def _first(body: Sequence[nodes.Node]) -> Iterator[nodes.Node]:
    """List what may be written first, by each way through a template."""
    for node in body:
        if isinstance(node, nodes.Output):
            yield node.nodes[0]
            return
        for field in ("body", "elif_", "else_"):
            yield from _first(getattr(node, field, None) or ())


def _text(value: object) -> str:
    match value:
        case str():
            return value
        case None:
            return ""
        case bool() | list() | dict():
            return _json(value)
    return str(value)


def _json(value: object) -> str:
    return orjson.dumps(value).decode()


def _compile(source: str, environment: _Sandbox) -> tuple[Any, frozenset[str] | None]:
    """Also the names that it uses; None where dice may fall otherwise the next time."""
    try:
        tree = environment.parse(source)
        names = frozenset(find_undeclared_variables(tree))
        unknown = names - {*NAMES, *environment.globals}
        if any(tree.find_all(nodes.ScopedEvalContextModifier)):
            raise InvalidTemplate("autoescape: values are always escaped for where they land")
        if not unknown:
            is_random = any(node.name == "random" for node in tree.find_all(nodes.Filter))
            tree = _Capture().visit(tree).set_environment(environment)
            template = environment.from_string(tree)
            # Jinja copies them for every event, which is slow from the mapping that it makes.
            template.globals = dict(template.globals)
            return template, None if is_random else names
        reason = _unknown_name(tree, unknown)
    except TemplateSyntaxError as error:
        reason = _at_line(error.lineno, error.message or "not a template")
    except (SyntaxError, RecursionError):
        reason = "it is nested too deeply"
    raise InvalidTemplate(reason)


def _unknown_name(tree: nodes.Template, unknown: frozenset[str]) -> str:
    first = next(node for node in tree.find_all(nodes.Name) if node.name in unknown)
    return _at_line(first.lineno, f"no such name: {first.name}; there are {', '.join(NAMES)}")


def _line(error: Exception) -> int | None:
    # Jinja names a template that has no file so, and puts its own line numbers into the traceback.
    frames = walk_tb(error.__traceback__)
    lines = [line for frame, line in frames if frame.f_code.co_filename == "<template>"]
    return lines[-1] if lines else None


def _at_line(line: int | None, reason: str) -> str:
    return reason if line is None else f"line {line}: {reason}"
