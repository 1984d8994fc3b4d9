"""moto's server, as a program with its port, in a server that keeps connections open as AWS does.

moto's own program closes each connection after one answer. It takes one request at a time here:
moto forgets a message that is sent while another one is deleted.
"""

import sys
from collections.abc import Iterable
from threading import Lock
from typing import Any

import uvicorn
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app


def main() -> None:
    moto, alone = DomainDispatcherApplication(create_backend_app), Lock()

    def application(*request: Any) -> Iterable[bytes]:
        with alone:
            answer: Iterable[bytes] = moto(*request)
            return answer

    uvicorn.run(
        application,
        interface="wsgi",
        host="127.0.0.1",
        port=int(sys.argv[1]),
        log_level="warning",
        timeout_keep_alive=60,
    )


if __name__ == "__main__":
    main()
