"""The image, built for real from the Dockerfile, where there is neither an engine nor a registry.

The base that the Dockerfile names cannot be had, so Debian's own packages of the same release stand
in for it: the same libraries and the same minor version of Python, at another place.
"""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "Dockerfile"

CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")

ORIGIN = {
    "REVISION": "0123456789abcdef0123456789abcdef01234567",
    "CREATED": "2026-11-22T12:00:00Z",
    "SOURCE": "https://git.example/relay",
}
"""Build arguments that name the image's origin."""

_COMPOSE = "compose/usr/libexec/docker/cli-plugins/docker-compose"

_UNREAD = ("doc", "locale", "man")
"""Folders of /usr/share that cost time and are never looked at."""


def base() -> re.Match[str]:
    """Read the base image: its version of Python, the release of Debian, the digest."""
    name = r"^ARG BASE=python:(?P<python>[\d.]+)-slim-(?P<debian>[a-z]+)$"
    pattern = rf"{name}\nARG BASE_DIGEST=(?P<digest>sha256:[0-9a-f]{{64}})$"
    found = re.search(pattern, DOCKERFILE.read_text(encoding="utf-8"), re.MULTILINE)
    assert found, "the base image is not pinned by version and digest"
    return found


@dataclass(frozen=True)
class Image:
    root: Path
    """Its files; a copy that may be changed."""
    config: dict[str, Any]
    """As engines keep it: User, Env, Entrypoint, Healthcheck and so on."""


class Builder:
    """buildah, with all that it keeps in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def ask(self, *arguments: str | Path) -> str:
        places = [f"--root={self._folder / 'storage'}", f"--runroot={self._folder / 'run'}"]
        command = ["buildah", "--storage-driver=vfs", *places, *arguments]
        return run(command, TMPDIR=str(self._folder)).strip()

    def base(self, *parts: Path) -> str:
        """Make an image of folders and archives that are laid upon each other."""
        container = self.ask("from", "scratch")
        for part in parts:
            self.ask("add", "--quiet", container, part, "/")
        return self.ask("commit", "--quiet", "--rm", container)

    def build(self, dockerfile: Path, *arguments: str) -> str:
        """Run a Dockerfile on the project's folder."""
        # Only the format of Docker has a health check.
        how = ("--isolation=chroot", "--network=host", "--format=docker", "--pull-never")
        return self.ask(
            "build", "--quiet", "--layers=false", *how, *arguments, f"--file={dockerfile}", ROOT
        ).splitlines()[-1]

    def image(self, name: str) -> Image:
        container = self.ask("from", "--pull-never", name)
        described = json.loads(self.ask("inspect", "--type=image", name))
        return Image(Path(self.ask("mount", container)), described["Docker"]["config"])


def run(command: Sequence[str | Path], **environ: str) -> str:
    """Run a program that must succeed, and return its stdout."""
    done = subprocess.run(
        command, env=os.environ | environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-5000:]}\n{done.stderr[-5000:]}"
    return done.stdout


def require_builder() -> None:
    if os.getuid() != 0:
        pytest.skip("needs root, to make a root file system")
    for program in ("buildah", "mmdebstrap"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")


@dataclass(frozen=True)
class Debian:
    """Packages of the image's Debian release, which may differ from the host's."""

    archive: Path
    """A small system with Python."""
    compose: Path
    """Docker's Compose, as a program of its own."""


def bootstrap() -> Debian:
    """Take both from where this machine takes its packages, once per machine."""
    system = platform.freedesktop_os_release()
    if system["ID"] != "debian":
        pytest.skip("this machine's packages are not Debian's")
    # Of the release itself: where its security updates come from, another release may not be.
    releases = f"({system['VERSION_CODENAME']}|sid)"
    (mirror, _), *_ = re.findall(
        rf"^'(\S+)/dists/{releases}/", run(["apt-get", "update", "--print-uris"]), re.MULTILINE
    )
    quick = ['--aptopt=Acquire::Languages "none"', "--dpkgopt=force-unsafe-io"]
    lean = [f"--dpkgopt=path-exclude=/usr/share/{unread}/*" for unread in _UNREAD]
    kind = ["--variant=minbase", "--include=python3-venv,ca-certificates"]
    recipe = ["mmdebstrap", "--quiet", *quick, *lean, *kind, base()["debian"], mirror]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "relay-tests"
    place = cache / f"debian-{sha256(repr(recipe).encode()).hexdigest()[:12]}"
    if not place.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            partial = Path(folder) / "debian"
            partial.mkdir()
            _bootstrap(partial, recipe)
            # Unless another run was faster.
            if not place.exists():
                partial.rename(place)
    return Debian(
        place / "base.tar", place / "compose/usr/libexec/docker/cli-plugins/docker-compose"
    )


def _bootstrap(folder: Path, recipe: list[str]) -> None:
    fetch = f'chroot "$1" apt-get download docker-compose && mv "$1"/docker-compose_* {folder}'
    *options, debian, mirror = recipe
    run([*options, f"--customize-hook={fetch}", debian, str(folder / "base.tar"), mirror])
    (package,) = folder.glob("docker-compose_*.deb")
    run(["dpkg-deb", "--extract", package, folder / "compose"])
    package.unlink()


def surroundings(folder: Path) -> Path:
    """The host's settings of pip and uv, for the base image."""
    names = ("global.cert", "global.index-url", "global.proxy", "global.trusted-host")
    told = run([sys.executable, "-m", "pip", "config", "list"])
    known = dict(re.findall(r"^([\w.-]+)='(.*)'$", told, re.MULTILINE))
    lines = [f"{name.partition('.')[2]} = {known[name]}\n" for name in names if name in known]
    place = folder / CERTIFICATES.relative_to("/")
    place.parent.mkdir(parents=True)
    if CERTIFICATES.exists():
        shutil.copy(CERTIFICATES, place)
    (folder / "etc" / "pip.conf").write_text("[global]\n" + "".join(lines), encoding="utf-8")
    index = os.environ.get("UV_DEFAULT_INDEX") or known.get("global.index-url")
    settings = ["system-certs = true", *([f'index-url = "{index}"'] if index else [])]
    (folder / "etc" / "uv").mkdir()
    (folder / "etc" / "uv" / "uv.toml").write_text("\n".join(settings), encoding="utf-8")
    return folder
