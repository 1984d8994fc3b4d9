"""The store on PostgreSQL: its speed, beside the same relay on SQLite, and what it leaves behind.

`python -m benchmarks.postgres [PART...] [--rounds N] ...`; without a part, all of them.
"""

import argparse

from benchmarks import rig
from benchmarks.postgres import acknowledge, server


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.postgres")
    parser.add_argument("parts", nargs="*", metavar="PART", help="acknowledge, drain, ids, bloat")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=6, help="of each flood")
    given = parser.parse_args()
    with server.running() as running:
        (version,) = running.execute("SHOW server_version")
        print(f"{rig.machine()}, PostgreSQL {version[0]}")
        acknowledge.measure(running, rounds=given.rounds, seconds=given.seconds)


if __name__ == "__main__":
    main()
