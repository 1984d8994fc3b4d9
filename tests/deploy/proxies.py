"""The shipped reverse proxies as real programs, each in a folder of its own.

Each runs the shipped files, except for its ports, its folders and its certificate; `place` makes
these replacements.
"""

import asyncio
import shutil
import socket
import ssl
import sys
from abc import abstractmethod
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from tests.brokers.authority import Authority
from tests.brokers.program import DEADLINE_S, Program
from tests.caller import PATH, SECRET, Answer, Caller, head, signed

P = TypeVar("P", bound="Proxy")

SHIPPED = Path(__file__).parents[2] / "deploy" / "proxy"

HOST = "hooks.example.com"
"""The public name in the shipped files."""

STRANGER = "127.0.0.2"
"""The callers' address, distinct from the proxy's."""

_ANY_CERTIFICATE = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
_ANY_CERTIFICATE.check_hostname = False
_ANY_CERTIFICATE.verify_mode = ssl.CERT_NONE


class Proxy(Program):
    """Stands in front of the relay at a port of this host; callers reach it by TLS at `port`."""

    def __init__(self, folder: Path, *, relay_port: int) -> None:
        super().__init__(folder)
        self.relay = f"127.0.0.1:{relay_port}"
        self.certificate = Authority(folder / "ca").issue("proxy")
        self.write()

    @abstractmethod
    def write(self) -> None:
        """Copy the shipped files into the folder, with the places of this test."""

    async def call(self, caller: str = STRANGER) -> Caller:
        """Connect from an address, as a stranger would."""
        return Caller(
            *await asyncio.open_connection(
                "127.0.0.1",
                self.port,
                ssl=_ANY_CERTIFICATE,
                server_hostname=HOST,
                local_addr=(caller, 0),
            )
        )

    async def ask(self, request: bytes, *, caller: str = STRANGER) -> Answer:
        """One request on a connection of its own."""
        async with await self.call(caller) as connection:
            return await connection.ask(request)


@asynccontextmanager
async def in_front(kind: type[P], folder: Path, *, relay_port: int) -> AsyncIterator[P]:
    """Run a proxy until the block ends."""
    own = folder / kind.__name__.lower()
    own.mkdir()
    proxy = kind(own, relay_port=relay_port)
    try:
        await asyncio.to_thread(proxy.start)
        yield proxy
    finally:
        await asyncio.to_thread(proxy.stop)


class Nginx(Proxy):
    name = "nginx"

    @property
    def access_log(self) -> Path:
        return self.folder / "access.log"

    @property
    def error_log(self) -> Path:
        return self.folder / "error.log"

    def write(self) -> None:
        shutil.copytree(SHIPPED / "nginx", self.folder / "nginx")
        temp = "".join(
            f"{kind}_temp_path {self.folder}/{kind};"
            for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        places = {
            "nginx.conf": {
                "/run/nginx.pid": f"{self.folder}/nginx.pid",
                "/var/log/nginx/": f"{self.folder}/",
                "http {": f"http {{ {temp}",
            },
            "relay/listen.conf": {
                "listen 443 ssl;": f"listen 127.0.0.1:{self.port} ssl;",
                "listen [::]:443 ssl;": "",
                "/etc/nginx/relay/fullchain.pem": str(self.certificate),
                "/etc/nginx/relay/privkey.pem": str(self.certificate),
            },
            "relay/upstream.conf": {"127.0.0.1:8080": self.relay},
        }
        for file, changes in places.items():
            place(SHIPPED / "nginx" / file, self.folder / "nginx" / file, changes)

    def command(self) -> list[str]:
        config = self.folder / "nginx" / "nginx.conf"
        errors = ["-e", str(self.error_log)]
        return [self.name, "-c", str(config), *errors, "-g", "daemon off;"]

    def kill(self) -> None:
        """In order, because it ends its own processes only then."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(DEADLINE_S)
        finally:
            super().kill()


class Caddy(Proxy):
    name = "caddy"

    def write(self) -> None:
        site = f"https://{HOST}:{self.port} {{\n\tbind 127.0.0.1\n"
        site += f"\ttls {self.certificate} {self.certificate}\n"
        changes = {
            "admin localhost:2019": "admin off",
            "auto_https disable_redirects": "auto_https off",
            f"{HOST} {{\n": site,
            "127.0.0.1:8080": self.relay,
        }
        place(SHIPPED / "caddy" / "Caddyfile", self.folder / "Caddyfile", changes)

    def command(self) -> list[str]:
        # It keeps a folder of its own below the home folder otherwise.
        home = [f"XDG_{kind}_HOME={self.folder}" for kind in ("DATA", "CONFIG")]
        return ["env", *home, self.name, "run", "--config", str(self.folder / "Caddyfile")]


class Traefik(Proxy):
    name = str(Path(sys.executable).with_name("traefik"))
    """From a package for Python, because Debian has none."""

    def write(self) -> None:
        dynamic = self.folder / "dynamic.yml"
        start = {
            '":443"': f'"127.0.0.1:{self.port}"',
            "/etc/traefik/dynamic.yml": str(dynamic),
        }
        place(SHIPPED / "traefik" / "traefik.yml", self.folder / "traefik.yml", start)
        changes = {
            "127.0.0.1:8080": self.relay,
            "/etc/traefik/fullchain.pem": str(self.certificate),
            "/etc/traefik/privkey.pem": str(self.certificate),
        }
        place(SHIPPED / "traefik" / "dynamic.yml", dynamic, changes)

    def command(self) -> list[str]:
        return [self.name, f"--configfile={self.folder / 'traefik.yml'}"]

    def listens(self) -> bool:
        """Whether it has read its routes; its port opens earlier.

        A body that is too large is refused by a middleware, so that the relay does not see it.
        """
        too_large = head("POST", PATH, ("Host", HOST), ("Content-Length", "9999999"))
        try:
            with (
                socket.create_connection(("127.0.0.1", self.port), timeout=1) as plain,
                _ANY_CERTIFICATE.wrap_socket(plain, server_hostname=HOST) as asking,
            ):
                asking.sendall(too_large)
                return b" 413 " in asking.recv(100)
        except OSError:
            return False


def place(shipped: Path, copy: Path, changes: Mapping[str, str]) -> None:
    """Copy a file with replacements; every replaced text must exist."""
    text = shipped.read_text(encoding="utf-8")
    for old, new in changes.items():
        assert old in text, f"{shipped} does not say {old}"
        text = text.replace(old, new)
    copy.write_text(text, encoding="utf-8")


def event(size: int) -> bytes:
    """An event of exactly this many bytes, some of them beyond ASCII."""
    start, end = b'{"id":"evt_large","event":"video.ready","data":"', b'"}'
    filler = "".join(chr(code) for code in range(0x20, 0x2FF) if chr(code) not in '"\\')
    inner = filler.encode() * (size // len(filler.encode()) + 1)
    room = size - len(start) - len(end)
    return start + inner[:room].decode(errors="ignore").encode().ljust(room) + end


def post(
    body: bytes,
    *header: tuple[str, str],
    target: str = PATH,
    sign: bool = True,
    secret: str = SECRET,
) -> bytes:
    """A whole request to the public name, signed unless `sign` is false."""
    lines = [("Host", HOST), ("Content-Length", str(len(body))), *header]
    if sign:
        lines.append(("Service-Signature", signed(body, secret=secret)))
    return head("POST", target, *lines) + body


def chunked(body: bytes, *, size: int) -> bytes:
    """The same without its length, in chunks of `size` bytes."""
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    coded = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    lines = [("Host", HOST), ("Transfer-Encoding", "chunked"), ("Service-Signature", signed(body))]
    return head("POST", PATH, *lines) + coded + b"0\r\n\r\n"
