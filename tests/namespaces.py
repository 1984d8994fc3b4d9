"""The first process of a namespace, as in a container: without a handler it gets no signal."""

import os
import subprocess
from pathlib import Path

import pytest

FIRST_PROCESS = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
"""Stands before a command; ends with its exit code."""


def _are_allowed() -> bool:
    try:
        done = subprocess.run(
            [*FIRST_PROCESS, "true"], capture_output=True, timeout=10, check=False
        )
    except FileNotFoundError:
        return False
    return done.returncode == os.EX_OK


needs_namespaces = pytest.mark.skipif(
    not _are_allowed(), reason="namespaces of processes are not allowed here"
)


def first_process(unshare: int) -> int | None:
    """Return the outer number of the process that `unshare` has started."""
    children = Path(f"/proc/{unshare}/task/{unshare}/children").read_text(encoding="ascii").split()
    return int(children[0]) if children else None
