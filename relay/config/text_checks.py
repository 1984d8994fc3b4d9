"""Finds references that are not written as such, and what env files and editors leave in values.

A message repeats no part of a value but the name of a variable, or of a file, that exists.
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from relay.outbound.template import NAMES

_ORIGIN = re.compile(r"env:(?P<variable>.*)|file:")
_MISSPELLED = re.compile(r"\s*(?i:(env)\s*[:.=]|(file)\s*[:=])\s*(\S+)\s*")
_VARIABLE = re.compile(
    r"\$\{([A-Za-z_]\w*)\}|\$(?:env:)?([A-Za-z_]\w*)|%([A-Za-z_]\w*)%"
    r"|\{\{\s*(?:env\.)?([A-Za-z_]\w*)\s*\}\}",
    re.ASCII,
)
"""A variable as shells and templates write it."""
_BARE_NAME = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)+")
_EMBEDDED = re.compile(
    r"\$\{([A-Za-z_]\w*)\}|(?<![\w$.-])\$([A-Z_][A-Z0-9_]+)(?![\w$.-])"
    r"|(?<=\s)(?i:env):([A-Za-z_]\w*)(?!\S)|(?<=\s)(?i:file):(/\S+)",
    re.ASCII,
)
"""A reference inside other text."""
_TEMPLATE = re.compile(r"\{\{.*?\}\}|\{%.*?%\}", re.DOTALL)
_ASSIGNMENT = re.compile(r"(?:export\s+)?([A-Z][A-Z0-9_]{2,})=(?!=*\s*$)")
_QUOTES = {'"': '"', "'": "'", "\u201c": "\u201d", "\u2018": "\u2019", "`": "`"}
_FOLDERS = ("/run/secrets/", "/etc/", "/var/", "/mnt/", "/home/", "/opt/")
"""Where secrets are kept, and with which no secret begins."""

_NO_FILE = 'looks like the path of a file, but is taken as the value itself: write "file:/path"'
_NO_REFERENCE = (
    'looks like a reference, but is taken as the value itself: write "env:NAME" or "file:/path"'
)
_ITSELF = "write the value itself"
_INSIDE = (
    "seems to hold a reference inside other text, where none is resolved: put the whole value into "
    "a variable or a file"
)


class TextFinding(NamedTuple):
    """A message about a text; certain if the variable or file behind it exists."""

    message: str
    is_certain: bool = False


def of_secret(written: str, value: str, environ: Mapping[str, str]) -> Iterator[TextFinding]:
    """Examine a value that may be a reference, as it is written and as it was resolved."""
    if (whole := _whole(value, environ)) is not None:
        yield whole
        return
    yield from _embedded(value, environ)
    if _TEMPLATE.search(value):
        yield TextFinding("looks like a template, but is sent as it is: this key takes none")
    yield from _remains(value, _ORIGIN.match(written))


def of_template(written: str, value: str, environ: Mapping[str, str]) -> Iterator[TextFinding]:
    """Examine a value that holds a template, which its compiler examines for itself."""
    variable = _VARIABLE.fullmatch(value.strip())
    name = None if variable is None else variable[4]
    if name is not None and name not in NAMES and (reference := _of_variable(name, environ)):
        yield reference
        return
    yield from _embedded(value, environ)
    yield from _remains(value, _ORIGIN.match(written))


def of_text(written: str, environ: Mapping[str, str]) -> Iterator[TextFinding]:
    """Examine the value of a key that takes no references."""
    if (reference := re.fullmatch(r"env:([A-Za-z_]\w*)|file:(/\S+)", written, re.ASCII)) is None:
        for braced in re.finditer(r"\$\{([A-Za-z_]\w*)\}", written, re.ASCII):
            if braced[1] in environ:
                message = f"holds ${{{braced[1]}}}, which the relay does not expand: {_ITSELF}"
                yield TextFinding(message, is_certain=True)
        return
    is_certain = reference[1] in environ if reference[1] else _exists(reference[2])
    yield TextFinding(f"is taken as it is, for this key takes no references: {_ITSELF}", is_certain)


def _whole(text: str, environ: Mapping[str, str]) -> TextFinding | None:
    """Examine a text that is nothing but a reference in a wrong form."""
    misspelled, variable = _MISSPELLED.fullmatch(text), _VARIABLE.fullmatch(text.strip())
    if misspelled is not None and misspelled[2]:
        return _of_file(misspelled[3]) or TextFinding(_NO_REFERENCE)
    if misspelled is not None:
        return _of_variable(misspelled[3], environ) or TextFinding(_NO_REFERENCE)
    if variable is not None:
        name = next(filter(None, variable.groups()))
        return _of_variable(name, environ) or TextFinding(_NO_REFERENCE)
    if _BARE_NAME.fullmatch(text):
        return _of_variable(text, environ)
    if text.startswith(("/", "./", "../", "~/", "@/")):
        unknown = TextFinding(_NO_FILE) if text.startswith(_FOLDERS) else None
        return _of_file(text.removeprefix("@")) or unknown
    return None


def _of_variable(name: str, environ: Mapping[str, str]) -> TextFinding | None:
    if name not in environ:
        return None
    return TextFinding(
        f'is taken as the value itself, although the environment has {name}: write "env:{name}"',
        is_certain=True,
    )


def _of_file(text: str) -> TextFinding | None:
    if not _exists(text):
        return None
    path = Path(text).expanduser().absolute()
    return TextFinding(
        f'is taken as the value itself, although the file {path} exists: write "file:{path}"',
        is_certain=True,
    )


def _embedded(text: str, environ: Mapping[str, str]) -> Iterator[TextFinding]:
    for found in _EMBEDDED.finditer(text):
        name = found[1] or found[2] or found[3]
        if name is not None and name in environ:
            yield TextFinding(
                f"holds a reference to the variable {name} inside other text, where none is "
                "resolved: put the whole value into a variable or a file",
                is_certain=True,
            )
        elif found[2] is None:  # an unknown `$WORD` may belong to a password
            yield TextFinding(_INSIDE, is_certain=found[4] is not None and _exists(found[4]))


def _remains(text: str, origin: re.Match[str] | None) -> Iterator[TextFinding]:
    """Find what does not belong to a value; `origin` is the reference that it came from."""
    assigned = _ASSIGNMENT.match(text)
    if assigned is not None and origin is not None and origin["variable"] in {None, assigned[1]}:
        yield TextFinding('begins with a name and "=", which count: keep only what follows')
    stripped = text.strip()
    if len(stripped) > 1 and _QUOTES.get(stripped[0]) == stripped[-1]:
        yield TextFinding("is in quotes, which count: remove them where the value is kept")
    if text.endswith("\r"):
        yield TextFinding("ends with a carriage return of a Windows line end, which counts")
    elif text.endswith("\n"):
        yield TextFinding("ends with a line break, which counts")
    elif text != stripped:
        yield TextFinding("starts or ends with white space, which counts")
    if hidden := next(filter(_is_hidden, text.strip()), None):
        name = unicodedata.name(hidden, "control character").lower()
        yield TextFinding(f"holds an invisible character (U+{ord(hidden):04X}, {name})")


def _is_hidden(character: str) -> bool:
    category = unicodedata.category(character)
    # A value of several lines, such as a key in JSON, is not hidden.
    return (category in {"Cf", "Cc", "Zs", "Zl", "Zp"}) and character not in " \t\r\n"


def _exists(path: str) -> bool:
    try:
        return Path(path).expanduser().is_file()
    except (OSError, ValueError, RuntimeError):
        return False
