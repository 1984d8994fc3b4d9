"""SQLite as an engine: fulfils `relay.store.engines.Engine`."""

from pathlib import Path

from relay.core.errors import Fault
from relay.store.integrity import Inspection
from relay.store.sqlite import disk, integrity
from relay.store.sqlite.opening import open_store
from relay.store.sqlite.preflight import check
from relay.store.sqlite.settings import SqliteSettings

__all__ = ["faults", "inspect", "is_held", "location", "open_store", "preflight", "reach"]


def faults(_: SqliteSettings) -> tuple[Fault, ...]:
    return ()


def location(settings: SqliteSettings) -> str:
    return settings.path


def preflight(settings: SqliteSettings) -> Fault | None:
    cause = check(Path(settings.path))
    return None if cause is None else Fault("store.path", f"serve cannot open it: {cause}")


async def reach(_: SqliteSettings) -> None:
    return None


def is_held(settings: SqliteSettings) -> bool:
    return not disk.is_free(Path(settings.path))


async def inspect(settings: SqliteSettings) -> Inspection:
    file = Path(settings.path)
    if not _exists(file):
        missing = "there is no such file; start the relay once to create it"
        return Inspection(0, None, (missing,))
    return await integrity.inspect(file)


def _exists(file: Path) -> bool:
    return file.is_file()
