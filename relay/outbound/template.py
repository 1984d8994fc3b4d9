"""Operators' templates: the names and filters that they may use, and the texts of their errors.

Templates come from the config only, never from an event, so the sandbox protects from mistakes, not
from attackers (dependencies.md, section 4).
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, cached_property
from traceback import walk_tb
from typing import Any

from jinja2 import TemplateSyntaxError, UndefinedError, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.meta import find_undeclared_variables

from relay.core.errors import InvalidTemplate
from relay.core.event import KINDS, Event, rfc3339
from relay.outbound import watched
from relay.outbound.template_environment import BUDGET, RenderBudget, TemplateSandbox
from relay.outbound.template_filters import FILTERS, Json, text_of

NAMES = ("createdAt", "data", "event", "id", "received", "reconstructed", "source", "watched")
"""Names in a template: the envelope's fields, and what the relay knows of the event."""

PERSONAL = frozenset({"data", "watched"})
"""Names below which personal data may stand."""

_OF_A_KIND = frozenset({"event", "source"})
"""A template with only these names renders the same for all events of a kind and source."""

_MARK = re.compile(r"\{[{%#]")

Escape = Callable[[str], str]


def is_template(text: str) -> bool:
    """Whether a text holds an expression, a statement or a comment."""
    return _MARK.search(text) is not None


def literal_prefix(text: str) -> str:
    """Return the text before the first expression, statement or comment."""
    return _MARK.split(text, maxsplit=1)[0]


class Value(str):
    """The output of an expression; all other pieces of an output are the author's own text."""

    __slots__ = ("json",)

    json: str | None
    """The JSON value that it is by its type; None for a text or a number."""

    @classmethod
    def of(cls, value: object) -> "Value":
        """Write a value as text; raises InvalidTemplate for one that has none."""
        text = text_of(value)
        written = cls(text)
        is_json = isinstance(value, bool | list | dict | Json)
        written.json = "null" if value is None else text if is_json else None
        return written

    def __str__(self) -> str:
        """Jinja calls `str` on each output, and must keep the type."""
        return self


Pieces = Iterable[str]
"""An output in order: literal texts of the author, and values between them."""

Write = Callable[[Pieces], Iterator[str]]
"""Escapes the values among the pieces."""


def escaping(escape: Escape) -> Write:
    """Escape every value in the same way, whatever its context."""
    return lambda pieces: (escape(piece) if isinstance(piece, Value) else piece for piece in pieces)


# These escape for HTML, or mark a text as escaped.
_BARRED_FILTERS = ("e", "escape", "forceescape", "safe", "urlize", "xmlattr")


class Rendering:
    """One event for the templates of one message: they share its names, and their limits."""

    def __init__(self, event: Event) -> None:
        self.event = event
        self.budget = RenderBudget()

    @cached_property
    def names(self) -> dict[str, Any]:
        """The values of `NAMES`, and the budget."""
        event = self.event
        document, history = event.document(), event.watch_history
        return {
            **{name: document.get(name) for name in ("createdAt", "data", "event", "id")},
            "received": rfc3339(event.received_ms),
            "reconstructed": event.reconstructed,
            "source": event.source,
            "watched": None if history is None else watched.document(history),
            BUDGET: self.budget,
        }


class Template:
    """One compiled template.

    The output of any expression is a value, which `write` escapes; literal text is not escaped.
    `set`, `call` and `filter` blocks, macros and recursive loops produce values, too.
    """

    def __init__(self, source: str, *, write: Write = iter) -> None:
        """Raises InvalidTemplate with the line and its fault."""
        self._source = source
        self._write = write
        self._template, names, is_random = _compile(source, _environment())
        self.is_personal = not names.isdisjoint(PERSONAL)
        """Whether its output may hold personal data."""
        self._is_same_for_kind = names <= _OF_A_KIND and not is_random
        self._known: dict[tuple[str, str], str] = {}

    def render(self, event: Event) -> str:
        """Render for one event; raises InvalidTemplate, whose text holds none of its values."""
        known = self._known.get((event.kind, event.source))
        return self.fill(Rendering(event)) if known is None else known

    def fill(self, rendering: Rendering) -> str:
        """Render as a part of a message; raises as `render` does."""
        event = rendering.event
        place = (event.kind, event.source)
        known = self._known.get(place)
        if known is not None:
            rendering.budget.write(len(known))
            return known
        written = self._try(rendering)
        if self._is_same_for_kind and event.kind in KINDS:
            self._known[place] = written
        return written

    def _try(self, rendering: Rendering) -> str:
        try:
            return self._fill(rendering)
        except Exception as error:  # noqa: BLE001  a template can raise whatever Python can
            reason = _at_line(_line(error), self._reason(error))
        # Raised outside the handler, so that it does not refer to the first error and its values.
        raise InvalidTemplate(reason)

    def _fill(self, rendering: Rendering) -> str:
        written: list[str] = []
        for piece in self._write(self._template.generate(rendering.names)):
            written.append(piece)
            rendering.budget.write(len(piece))
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
                return "it uses something that templates may not use"
        # Python's own texts quote the values at fault.
        return f"it fails with {type(error).__name__}"


@cache
def _environment() -> TemplateSandbox:
    # With a context, because Jinja would otherwise treat a constant expression as literal text.
    @pass_context
    def finalize(_: Any, value: Any) -> Value:
        return Value.of(value)

    environment = TemplateSandbox(finalize)
    for name in _BARRED_FILTERS:
        environment.filters.pop(name)
    environment.filters |= FILTERS
    return environment


def opens_with(source: str, name: str) -> bool:
    """Whether the output can begin with a value of `name`; False if the template is invalid."""
    try:
        tree = _environment().parse(source)
    except (TemplateSyntaxError, RecursionError):
        return False
    names = list(tree.find_all(nodes.Name))
    if all(node.name != name for node in names):
        return False
    # A variable that the template sets may hold it.
    held_by = {name, *(node.name for node in names if node.ctx != "load")}
    return any(
        isinstance(part, nodes.Name) and part.name in held_by
        for first in _first(tree.body)
        for part in (first, *first.find_all(nodes.Name))
    )


def _first(body: Sequence[nodes.Node]) -> Iterator[nodes.Node]:
    """Yield the nodes that may be output first, one for each branch."""
    for node in body:
        if isinstance(node, nodes.Output):
            yield node.nodes[0]
            return
        for field in ("body", "elif_", "else_"):
            yield from _first(getattr(node, field, None) or ())


def _compile(source: str, environment: TemplateSandbox) -> tuple[Any, frozenset[str], bool]:
    """Return the compiled template, the names that it uses, and whether its output is random."""
    try:
        tree = environment.parse(source)
        names = frozenset(find_undeclared_variables(tree))
        unknown = names - {*NAMES, *environment.globals}
        if any(tree.find_all(nodes.ScopedEvalContextModifier)):
            raise InvalidTemplate("autoescape: values are always escaped for their context")
        if not unknown:
            is_random = any(node.name == "random" for node in tree.find_all(nodes.Filter))
            template = environment.from_tree(tree)
            # Jinja copies them for every event, and copying its own mapping is slow.
            template.globals = dict(template.globals)
            return template, names, is_random
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
    # Jinja's file name for a template without a file; its tracebacks have the template's lines.
    frames = walk_tb(error.__traceback__)
    lines = [line for frame, line in frames if frame.f_code.co_filename == "<template>"]
    return lines[-1] if lines else None


def _at_line(line: int | None, reason: str) -> str:
    return reason if line is None else f"line {line}: {reason}"
