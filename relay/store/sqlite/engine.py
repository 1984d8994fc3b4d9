"""SQLite as an engine: fulfils `relay.store.engines.Engine`."""

from collections.abc import Iterator
from pathlib import Path

from relay.core.errors import Fault
from relay.core.units import size
from relay.store import Preflight
from relay.store.integrity import Inspection
from relay.store.sqlite import disk, integrity
from relay.store.sqlite import restore as restoring
from relay.store.sqlite.opening import open_store
from relay.store.sqlite.preflight import check, foreign_log
from relay.store.sqlite.settings import SqliteSettings

__all__ = [
    "faults",
    "inspect",
    "is_held",
    "location",
    "open_store",
    "preflight",
    "reach",
    "restore",
]


def faults(_: SqliteSettings) -> tuple[Fault, ...]:
    return ()


def location(settings: SqliteSettings) -> str:
    return settings.path


def preflight(settings: SqliteSettings) -> Preflight:
    path = Path(settings.path)
    if (cause := check(path)) is not None:
        return Preflight(fault=Fault("store.path", f"serve cannot open it: {cause}"))
    return Preflight(warnings=tuple(_doubts(path, settings.min_free)), is_missing=not _exists(path))


def _doubts(path: Path, min_free: int) -> Iterator[Fault]:
    network, free = disk.network_file_system(path), disk.free_to_use(path)
    if network is not None:
        yield Fault(
            "store.path",
            f"is on {network}, where SQLite's locks are unreliable: name a path on a local disk",
        )
    if free < min_free:
        yield Fault(
            "store.min_free",
            f"only {size(free)} are free where the store is, so that every event is answered with "
            f"503: make room, or allow less than {size(min_free)}",
        )


async def reach(_: SqliteSettings) -> None:
    return None


def is_held(settings: SqliteSettings) -> bool:
    return not disk.is_free(Path(settings.path))


async def inspect(settings: SqliteSettings) -> Inspection:
    file = Path(settings.path)
    if not _exists(file):
        missing = "there is no such file; start the relay once to create it"
        return Inspection(0, None, (missing,))
    if (foreign := foreign_log(file)) is not None:
        return Inspection(disk.size_bytes(file), None, (foreign,))
    return await integrity.inspect(file)


async def restore(
    settings: SqliteSettings, copy: Path, *, now_ms: int
) -> tuple[Inspection, Path | None]:
    return await restoring.restore(Path(settings.path), copy, now_ms=now_ms)


def _exists(file: Path) -> bool:
    return file.is_file()
