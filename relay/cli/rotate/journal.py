"""How far a rotation has come, kept beside the secret's file so that it can be run again.

It holds no secret.
"""

import json
from pathlib import Path
from typing import Literal, NamedTuple, cast

from relay.cli import private_file

Step = Literal["rotating", "written"]
"""`rotating`: the API may have been asked; `written`: the new secret is in its file."""


class Interrupted(NamedTuple):
    """The step that an earlier run of the command had reached, and when it began."""

    step: Step
    begun_ms: int | None


class Journal:
    """The file of one rotation; every method but `read` raises OSError."""

    def __init__(self, secret_file: Path, *, endpoint: str) -> None:
        self._path = secret_file.with_name(f".{secret_file.name}.rotation")
        self._endpoint = endpoint

    def read(self) -> Interrupted | None:
        """Return where an earlier run was interrupted; None where none was.

        A file that cannot be understood counts as the step that is safe to repeat.
        """
        try:
            text = self._path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            document = json.loads(text)
            if document["endpoint"] != self._endpoint:
                return None
            step = "written" if document["step"] == "written" else "rotating"
            return Interrupted(cast("Step", step), int(document["begun_ms"]))
        except (ValueError, KeyError, TypeError, RecursionError):
            return Interrupted("rotating", None)

    def write(self, step: Step, *, begun_ms: int) -> None:
        document = {"endpoint": self._endpoint, "step": step, "begun_ms": begun_ms}
        private_file.replace(self._path, json.dumps(document).encode())

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)
