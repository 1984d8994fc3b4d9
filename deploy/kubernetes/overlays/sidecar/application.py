"""An example of an application beside a relay: takes each event once, on loopback.

`application.py` serves; `application.py ready` exits with 0 if it does.
"""

import http.server
import json
import os
import signal
import socket
import sys

ADDRESS = ("127.0.0.1", int(os.environ.get("PORT", "8000")))

seen = set[str]()
"""A real application stores the ids in the same transaction as its own data."""


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers 204 once the event is handled; after any other status the relay tries again."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        # At least once means that an event can come twice.
        event_id = self.headers["webhook-id"]
        if event_id not in seen:
            # No personal data: the kind and the id are enough to find it with `relay events show`.
            print(json.loads(body)["event"], event_id, flush=True)
            seen.add(event_id)
        self.send_response(204)
        self.end_headers()

    def log_request(self, *_: object) -> None:
        """The relay logs every attempt already."""


def serve() -> None:
    # As process 1 it has no default for this signal.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    http.server.ThreadingHTTPServer(ADDRESS, Handler).serve_forever()


def ready() -> None:
    socket.create_connection(ADDRESS, timeout=3).close()


if __name__ == "__main__":
    ready() if sys.argv[1:] == ["ready"] else serve()
