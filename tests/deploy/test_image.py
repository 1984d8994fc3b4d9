"""The image: its content, and its run with a read-only root, as in deploy/compose."""

import json
import os
import re
import shlex
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from importlib import metadata
from importlib.util import MAGIC_NUMBER
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.deploy import image as images
from tests.deploy.container import Container
from tests.deploy.image import DOCKERFILE, Builder, Image
from tests.guarantees.process import SECRET, http_client, until
from tests.ports import free_port

OWNER = 10001
VOLUME = "/var/lib/relay"
TOKEN = "an-admin-token-of-the-tests"

SENT_TO_THE_BUILD = {
    *("pyproject.toml", "README.md", "LICENSE", "config.example.toml", "relay"),
    "deploy/requirements-build.txt",
    "deploy/requirements-extras.txt",
    "deploy/requirements-sqlite.txt",
    "deploy/requirements-uv.txt",
}

CONFIG = """
[server]
listen = "0.0.0.0:{public}"
admin_listen = "0.0.0.0:{admin}"

[store]
path = "/var/lib/relay/relay.db"
min_free = "1MiB"

[admin]
token = "file:/run/secrets/admin-token"

[[source]]
name = "main"
path = "/webhooks"
secrets = ["file:/run/secrets/source-main"]
"""


class Running:
    """A relay in a container, with a volume and secrets as an operator would give them."""

    def __init__(self, image: Image, folder: Path) -> None:
        self.public, self.admin = free_port(), free_port()
        self.volume = folder / "volume"
        self.volume.mkdir(mode=0o700)
        os.chown(self.volume, OWNER, OWNER)
        files = {
            "/etc/relay/config.toml": CONFIG.format(public=self.public, admin=self.admin),
            "/run/secrets/admin-token": TOKEN,
            "/run/secrets/source-main": SECRET,
        }
        for number, text in enumerate(files.values()):
            (folder / str(number)).write_text(text, encoding="utf-8")
        self.container = Container(
            image,
            volumes={VOLUME: self.volume},
            files={target: folder / str(number) for number, target in enumerate(files)},
            log=folder / "log",
        )

    async def is_ready(self) -> bool:
        assert self.container.running, self.container.log.read_text()
        async with http_client() as client:
            try:
                answer = await client.get(f"http://127.0.0.1:{self.admin}/readyz")
            except httpx.TransportError:
                return False
        return answer.status_code == httpx.codes.OK


@pytest.fixture
async def running(image: Image, tmp_path: Path) -> AsyncIterator[Running]:
    relay = Running(image, tmp_path)
    with relay.container:
        await until(relay.is_ready, what="the relay in its container is ready")
        yield relay


def test_hadolint_accepts_the_dockerfile() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run(
        [hadolint, "--no-color", DOCKERFILE], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.returncode) == ("", 0)


def test_both_stages_use_one_base_pinned_by_digest() -> None:
    assert images.base()["python"]
    lines = DOCKERFILE.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.startswith("FROM")] == [
        "FROM ${PYTHON} AS build",
        "FROM ${PYTHON}",
    ]


def test_the_build_context_holds_only_files_of_the_image(builder: Builder, tmp_path: Path) -> None:
    everything = tmp_path / "Dockerfile"
    everything.write_text("FROM scratch\nCOPY . /\n", encoding="utf-8")
    root = builder.image(builder.build(everything)).root
    sent = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    kinds = re.compile(r"relay/.*\.(py|sql|typed|html|css|js|svg)")
    code = {path for path in sent if kinds.fullmatch(path)}
    assert code
    assert sent - code == SENT_TO_THE_BUILD - {"relay"}


def test_pid_1_is_the_relay_with_a_fixed_user_id(image: Image) -> None:
    config = image.config
    assert (config["User"], config["WorkingDir"]) == (f"{OWNER}:{OWNER}", VOLUME)
    assert (config["Entrypoint"], config["Cmd"]) == (["relay"], ["serve"])
    assert config["StopSignal"] == "SIGTERM"
    assert config["Healthcheck"]["Test"][:3] == ["CMD", "relay", "probe"]
    assert set(config["Volumes"]) == {VOLUME}
    assert set(config["ExposedPorts"]) == {"8080/tcp", "9464/tcp"}


def test_its_user_can_write_to_the_volume_only(image: Image) -> None:
    assert own(image.root) == {VOLUME}
    assert stat.S_IMODE((image.root / VOLUME.lstrip("/")).stat().st_mode) == 0o700


def own(root: Path) -> set[str]:
    """Paths writable by OWNER, without sticky folders such as /tmp."""
    found = set()
    for path in root.rglob("*"):
        status = path.lstat()
        anyone = status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX
        if not path.is_symlink() and (anyone or OWNER in (status.st_uid, status.st_gid)):
            found.add(f"/{path.relative_to(root)}")
    return {path for path in found if not path.startswith("/dev/")}


def test_the_labels_name_source_revision_and_base(image: Image) -> None:
    found = images.base()
    kind = "org.opencontainers.image"
    assert image.config["Labels"].items() >= {
        (f"{kind}.revision", images.ORIGIN["REVISION"]),
        (f"{kind}.created", images.ORIGIN["CREATED"]),
        (f"{kind}.source", images.ORIGIN["SOURCE"]),
        (f"{kind}.base.name", f"docker.io/library/python:{found['python']}-slim-{found['debian']}"),
        (f"{kind}.base.digest", found["digest"]),
    }


def test_its_component_list_names_every_installed_package(image: Image) -> None:
    text = (image.root / "usr/share/doc/relay/sbom.cdx.json").read_text(encoding="utf-8")
    document = json.loads(text)
    assert document["bomFormat"] == "CycloneDX"
    listed = {(each["name"].lower(), each["version"]) for each in document["components"]}
    (packages,) = image.root.glob("opt/relay/lib/python*/site-packages")
    installed = {
        (each.metadata["Name"].lower(), each.version)
        for each in metadata.distributions(path=[str(packages)])
    }
    assert len(installed) > 10
    assert listed == installed


def test_pip_and_build_tools_are_not_in_its_environment(image: Image) -> None:
    (packages,) = (image.root / "opt/relay/lib").glob("python*/site-packages")
    found = {path.name.partition("-")[0] for path in packages.glob("*.dist-info")}
    assert {"relay", "pysqlite3", "uvicorn"} <= found
    assert found & {"pip", "setuptools", "hatchling"} == set()


def test_all_modules_are_compiled_with_unchecked_hashes(image: Image) -> None:
    sources = [*(image.root / "opt/relay/lib").rglob("*.py")]
    tag = f"cpython-{images.base()['python'].replace('.', '', 1).partition('.')[0]}"
    assert sources
    for source in sources:
        compiled = source.parent / "__pycache__" / f"{source.stem}.{tag}.pyc"
        flags = compiled.read_bytes()[len(MAGIC_NUMBER) : len(MAGIC_NUMBER) + 4]
        assert flags == b"\x01\x00\x00\x00", compiled


async def test_with_a_read_only_root_it_takes_an_event_and_writes_only_to_its_volume(
    running: Running,
) -> None:
    sent = running.container.execute(
        *("relay", "send", "lead.captured", "--secret", "file:/run/secrets/source-main"),
        *("--url", f"http://127.0.0.1:{running.public}/webhooks"),
    )
    assert sent.returncode == 0, sent.stderr
    assert {path.name for path in running.volume.iterdir()} >= {"relay.db", "relay.db-wal"}
    refused = running.container.execute("touch", "/etc/relay/new", "/opt/relay/new", "/run/new")
    assert refused.stderr.count("Read-only file system") == 3


async def test_it_runs_as_a_user_without_any_privilege(running: Running) -> None:
    status = Path(f"/proc/{running.container.pid}/status").read_text(encoding="utf-8")
    said = dict(line.split(":\t", 1) for line in status.splitlines())
    assert said["Name"] == "relay"
    assert said["NSpid"].split()[-1] == "1"
    assert {*said["Uid"].split(), *said["Gid"].split()} == {str(OWNER)}
    assert said["Groups"].strip() == ""
    assert {said[f"Cap{kind}"] for kind in ("Prm", "Eff", "Bnd")} == {"0" * 16}


async def test_its_build_info_names_its_revision_and_a_sqlite_without_the_wal_reset_fault(
    running: Running,
) -> None:
    async with http_client() as client:
        text = (await client.get(f"http://127.0.0.1:{running.admin}/metrics")).text
    (build,) = [
        sample.labels
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "relay_build_info"
    ]
    assert build["revision"] == images.ORIGIN["REVISION"]
    assert tuple(map(int, build["sqlite"].split("."))) >= (3, 51, 3)
    wanted = images.base()["python"].rpartition(".")[0]
    assert build["python"].rpartition(".")[0] == wanted
    assert "store.sqlite_fault" not in running.container.log.read_text(encoding="utf-8")


async def test_its_health_check_needs_no_config_and_detects_a_hang(
    running: Running, image: Image, tmp_path: Path
) -> None:
    asked = shlex.join(image.config["Healthcheck"]["Test"][1:])
    own = shlex.split(asked.replace("9464", str(running.admin)))
    (tmp_path / "0").write_text("[broken", encoding="utf-8")
    assert running.container.execute(*own).returncode == 0
    os.kill(running.container.pid, signal.SIGSTOP)
    try:
        hung = running.container.execute(*own)
    finally:
        os.kill(running.container.pid, signal.SIGCONT)
    assert hung.returncode == 1
    assert "did not respond in time" in hung.stderr
    other = shlex.split(asked.replace("9464", str(free_port())))
    assert running.container.execute(*other).returncode == 1


async def test_sigterm_to_pid_1_drains_and_stops_it(running: Running) -> None:
    assert running.container.stop() == 0
    log = running.container.log.read_text(encoding="utf-8")
    assert log.index('"relay.draining"') < log.index('"relay.stopped"')
