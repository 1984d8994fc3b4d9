"""A certificate authority of a test's own, which vouches for servers and for clients."""

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

_NEW = "openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
# Python 3.13 asks for what RFC 5280 does, and OpenSSL leaves it out unless told.
_OF_CA = "-addext keyUsage=critical,keyCertSign"
_OF_OTHERS = "-extensions v3_req -addext authorityKeyIdentifier=keyid"


class Authority:
    """Keeps its files in a folder; what it issues is for 127.0.0.1."""

    def __init__(self, folder: Path) -> None:
        if shutil.which("openssl") is None:
            pytest.skip("openssl is not installed")
        self._folder = folder
        self._key = folder / "ca.key"
        self.file = folder / "ca.pem"
        folder.mkdir()
        files = ("-keyout", self._key, "-out", self.file)
        _run(*_NEW.split(), "-x509", *_OF_CA.split(), "-subj", "/CN=ca", *files)

    def issue(self, name: str) -> Path:
        """Give a PEM file with a certificate and its key, and only these."""
        key, path = self._folder / f"{name}.key", self._folder / f"{name}.pem"
        sign = ("-x509", "-CA", self.file, "-CAkey", self._key)
        names = ("-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1")
        _run(*_NEW.split(), *_OF_OTHERS.split(), *sign, *names, "-keyout", key, "-out", path)
        path.write_bytes(path.read_bytes() + key.read_bytes())
        return path

    def context(self) -> ssl.SSLContext:
        """Give the context of a server that demands a certificate from here, and shows one."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=self.file)
        context.load_cert_chain(self.issue("server"))
        context.verify_mode = ssl.CERT_REQUIRED
        return context


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True, capture_output=True)
