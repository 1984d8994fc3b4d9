"""Whether a relay's memory stays level: resident memory after each eighth of a long load.

`python -m benchmarks.soak [EVENTS]`
"""

import sys
import tempfile
from pathlib import Path

import uvloop

from benchmarks import load, rig
from tests.ports import free_port

RATE = 400
STRETCHES = 8
WARM_S = 10


def main() -> None:
    events = int(sys.argv[1]) if len(sys.argv) > 1 else 252_000
    print(rig.machine())
    port, each = free_port(), events // STRETCHES
    rows: list[tuple[str, ...]] = [
        ("events", "resident", "growth per 1,000 events", "of the first")
    ]
    with tempfile.TemporaryDirectory() as folder:
        relay = rig.Relay(Path(folder), [rig.http_sink(port)])
        with rig.destination("sink", port), relay.running() as running:
            # What a start and a first load bring with them is no growth.
            uvloop.run(load.paced(relay.listen, rate=RATE, seconds=WARM_S))
            before, first = running.resident_mib(), 0.0
            rows.append(("warm", f"{before:.1f} MiB", "", ""))
            for stretch in range(1, STRETCHES + 1):
                uvloop.run(load.paced(relay.listen, rate=RATE, seconds=each / RATE))
                now = running.resident_mib()
                grown = (now - before) * 1024 / (each / 1000)
                first = first or grown
                share = f"{grown / first:.2f}" if first else ""
                rows.append((f"{stretch * each:,}", f"{now:.1f} MiB", f"{grown:.1f} KiB", share))
                before = now
    rig.table(rows)


if __name__ == "__main__":
    main()
