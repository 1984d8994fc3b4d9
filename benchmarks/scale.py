"""What a million events cost: memory with all of them pending, and the time to be ready.

`python -m benchmarks.scale [EVENTS]`
"""

import sys
import tempfile
import time
from pathlib import Path

import uvloop

from benchmarks import backlog, requests, rig

SETTLE_S = 15


def main() -> None:
    events = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    print(rig.machine())
    with tempfile.TemporaryDirectory() as folder:
        port = rig.free_port()
        relay = rig.Relay(Path(folder), [rig.http_sink(port)])
        uvloop.run(backlog.fill(relay.store, f"sink{port}", requests.bodies(events)))
        size_mib = relay.database.stat().st_size / (1 << 20)
        with relay.running() as running:
            start_s = running.start_s
            time.sleep(SETTLE_S)
            pending = running.metric("relay_pending_deliveries")
            resident = running.resident_mib()
    with tempfile.TemporaryDirectory() as folder:
        empty = rig.Relay(Path(folder), [rig.http_sink(rig.free_port())])
        with empty.running() as running:
            empty_start_s, empty_resident = running.start_s, running.resident_mib()
    rig.table(
        [
            ("pending", "store", "start to ready", f"resident after {SETTLE_S} s"),
            ("0", "", f"{empty_start_s:.2f} s", f"{empty_resident:.0f} MiB"),
            (f"{pending:,.0f}", f"{size_mib:.0f} MiB", f"{start_s:.2f} s", f"{resident:.0f} MiB"),
        ]
    )


if __name__ == "__main__":
    main()
