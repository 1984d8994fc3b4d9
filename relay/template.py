"""What an operator's template may do, and how its mistakes read (pure).

Templates come from the config only, never from an event: the sandbox bounds mistakes, not enemies
(dependencies.md, section 4).
"""

from collections.abc import Callable
from functools import cache
from traceback import walk_tb
from typing import Any

import orjson
from jinja2 import StrictUndefined, TemplateSyntaxError, UndefinedError, nodes
from jinja2.exceptions import SecurityError
from jinja2.meta import find_undeclared_variables
from jinja2.sandbox import ImmutableSandboxedEnvironment
from markupsafe import Markup

from relay.errors import InvalidTemplate
from relay.event import KINDS, Event

OUTPUT_MAX = 65_536
"""The longest output and the longest repetition, in characters or members."""

NAMES = ("createdAt", "data", "event", "id", "source")
"""What a template can speak of: the envelope's four fields, and the source's name in the config."""

_OF_A_KIND = frozenset({"event", "source"})
"""What speaks of these only writes the same for every event of a kind and a source."""

Escape = Callable[[str], str]

# Each of these marks a text as escaped already, or escapes it for HTML.
_BARRED_FILTERS = ("e", "escape", "forceescape", "safe", "tojson", "urlize", "xmlattr")


class Template:
    """One compiled template.

    `escape` is applied to the value of every `{{ expression }}`, and never twice, so that an
    author cannot forget it; the text around expressions is the author's and stays as it is.
    """

    def __init__(self, source: str, *, escape: Escape | None = None) -> None:
        """Raises InvalidTemplate with the line and what is wrong there."""
        self._source = source
        self._template, names = _compile(source, _environment(escape))
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
            return self._write(event)
        except Exception as error:  # noqa: BLE001  a template can raise whatever Python can
            reason = _at_line(_line(error), self._reason(error))
        # Out here, because an error raised in the handler carries the first one and its values.
        raise InvalidTemplate(reason)

    def _write(self, event: Event) -> str:
        document = event.document()
        names = {name: document.get(name) for name in NAMES} | {"source": event.source}
        written: list[str] = []
        size = 0
        for piece in self._template.generate(names):
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


@cache
def _environment(escape: Escape | None) -> _Sandbox:
    def finalize(value: Any) -> str:
        if escape is None:
            return _text(value)
        # Markup is what a macro or a `set` block wrote: the values in it have been through here.
        return value if isinstance(value, Markup) else Markup(escape(_text(value)))  # noqa: S704

    environment = _Sandbox(
        undefined=_Missing,
        finalize=finalize,
        autoescape=escape is not None,
        keep_trailing_newline=False,
    )
    for name in _BARRED_FILTERS if escape else ():
        environment.filters.pop(name)
    return environment


def _text(value: object) -> str:
    match value:
        case str():
            return value
        case None:
            return ""
        case bool() | list() | dict():
            return orjson.dumps(value).decode()
    return str(value)


def _compile(source: str, environment: _Sandbox) -> tuple[Any, frozenset[str] | None]:
    """Also the names that it uses; None where dice may fall otherwise the next time."""
    try:
        tree = environment.parse(source)
        names = frozenset(find_undeclared_variables(tree))
        unknown = names - {*NAMES, *environment.globals}
        if not unknown:
            template = environment.from_string(source)
            # Jinja copies them for every event, which is slow from the mapping that it makes.
            template.globals = dict(template.globals)
            is_random = any(each.name == "random" for each in tree.find_all(nodes.Filter))
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
