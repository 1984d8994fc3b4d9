"""Finds the file that holds a source's secret, so that a rotation can write a new one to it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from relay.config.document import read_document
from relay.core.authentication import SourceSettings
from relay.core.errors import SecretNotRotatable

_FILE = "file:"


def secret_file(path: Path, source: SourceSettings, *, label: str | None, now_ms: int) -> Path:
    """Return the file of the one secret that has not expired, or of the one with this label.

    `source` is one of this document. Raises SecretNotRotatable for any other secret, and for a file
    that the document refers to twice.
    """
    document = read_document(path)
    (table,) = (each for each in document["source"] if each.get("name") == source.name)
    number = _chosen(source, label=label, now_ms=now_ms)
    written = table["secrets"][number]
    reference = written["secret"] if isinstance(written, dict) else written
    if not reference.startswith(_FILE):
        where = "the environment" if reference.startswith("env:") else "the config itself"
        raise SecretNotRotatable(
            f"source {source.name}: the secret is in {where}, where no command can change it; "
            'keep it in a file: secrets = ["file:/path"]'
        )
    if sum(text == reference for text in _texts(document)) > 1:
        raise SecretNotRotatable(f"{path}: refers to {reference} twice; each needs its own file")
    return Path(reference.removeprefix(_FILE))


def _chosen(source: SourceSettings, *, label: str | None, now_ms: int) -> int:
    valid = {key.label: number for number, key in enumerate(source.keys) if key.until_ms > now_ms}
    if label is None and len(valid) == 1:
        return next(iter(valid.values()))
    if label in valid:
        return valid[label]
    known = ", ".join(valid) or "none"
    cause = "has not exactly one valid secret" if label is None else f"has no secret {label}"
    raise SecretNotRotatable(f"source {source.name} {cause}; give --label, one of: {known}")


def _texts(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for item in value.values():
                yield from _texts(item)
        case list():
            for item in value:
                yield from _texts(item)
