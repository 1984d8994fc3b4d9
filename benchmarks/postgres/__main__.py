"""The store on PostgreSQL: its speed, beside the same relay on SQLite, and what it leaves behind.

`python -m benchmarks.postgres [PART...] [--rounds N] ...`; without a part, all of them.
"""

import argparse

from benchmarks import rig
from benchmarks.postgres import acknowledge, bloat, drain, ids, server, wakeup


def _acknowledge(running: server.Server, given: argparse.Namespace) -> None:
    acknowledge.measure(running, rounds=given.rounds, seconds=given.seconds)


def _drain(running: server.Server, given: argparse.Namespace) -> None:
    drain.measure(running, rounds=given.rounds, events=given.backlog)


def _ids(running: server.Server, given: argparse.Namespace) -> None:
    ids.measure(running, rounds=given.rounds, seconds=given.seconds, ids=given.ids)


def _bloat(running: server.Server, given: argparse.Namespace) -> None:
    bloat.measure(running, settlements=given.settlements)


def _wakeup(running: server.Server, given: argparse.Namespace) -> None:
    wakeup.measure(running, seconds=given.seconds)


_PARTS = {
    "acknowledge": _acknowledge,
    "drain": _drain,
    "ids": _ids,
    "bloat": _bloat,
    "wakeup": _wakeup,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.postgres")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(_PARTS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=6, help="of each flood")
    parser.add_argument("--backlog", type=int, default=50_000, help="to drain")
    parser.add_argument("--ids", type=int, default=1_000_000, help="kept")
    parser.add_argument("--settlements", type=int, default=200_000, help="beside dead rows")
    given = parser.parse_args()
    if unknown := set(given.parts) - set(_PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    with server.running() as running:
        (version,) = running.execute("SHOW server_version")
        print(f"{rig.machine()}, PostgreSQL {version[0]}")
        for part in given.parts or _PARTS:
            _PARTS[part](running, given)


if __name__ == "__main__":
    main()
