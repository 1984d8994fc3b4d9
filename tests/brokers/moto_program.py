"""moto's server, as a program with its port, in a server that keeps connections open as AWS does.

moto's own program closes each connection after one answer.
"""

import sys

import uvicorn
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app


def main() -> None:
    application = DomainDispatcherApplication(create_backend_app)
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
