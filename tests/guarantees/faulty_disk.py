"""A disk with faults on demand: the library that is put in front of a relay's system calls."""

import shutil
import subprocess
from pathlib import Path

import pytest


def build(folder: Path) -> Path:
    """Build it now; what it does is said in faulty_disk.c."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler, and a disk's faults cannot be brought about without")
    library = folder / "faulty_disk.so"
    source = Path(__file__).with_suffix(".c")
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True)
    return library


def let(fault: Path, happen: str) -> None:
    """Say what the disk does from now on; at once and whole, for it is read at every call."""
    told = fault.with_suffix(".new")
    told.write_text(happen)
    told.rename(fault)
