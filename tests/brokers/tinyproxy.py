"""A real proxy, which keeps a log of the requests that it was asked for."""

import re
from pathlib import Path

from tests.brokers.program import Program

PASSWORD = "marked-password"

_REQUEST = re.compile(r"Request \(file descriptor \d+\): (\S+ \S+) HTTP")


class TinyProxy(Program):
    """`url` carries what it asks for: a user and a password, or nothing."""

    name = "tinyproxy"

    def __init__(self, folder: Path, *, asks: bool = False, more: str = "") -> None:
        super().__init__(folder)
        self.bare_url = self.url = f"http://127.0.0.1:{self.port}"
        if asks:
            self.url = f"http://relay:{PASSWORD}@127.0.0.1:{self.port}"
            more += f"\nBasicAuth relay {PASSWORD}"
        (folder / "tinyproxy.conf").write_text(
            f"Port {self.port}\nListen 127.0.0.1\nTimeout 30\nMaxClients 50\nAllow 127.0.0.1\n"
            f'LogFile "{folder}/requests.log"\nLogLevel Connect\n{more}\n'
        )

    def command(self) -> list[str]:
        return [self.name, "-d", "-c", str(self.folder / "tinyproxy.conf")]

    def requests(self) -> list[str]:
        """List methods and targets, as they came."""
        return _REQUEST.findall((self.folder / "requests.log").read_text())
