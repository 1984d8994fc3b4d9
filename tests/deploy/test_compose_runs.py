"""deploy/compose at work, on two hosts in place of two containers."""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.brokers.authority import Authority
from tests.deploy import compose
from tests.deploy.compose import address
from tests.deploy.container import PATIENCE_S, Container
from tests.deploy.image import Image
from tests.deploy.network import cable
from tests.guarantees.process import SECRET, until

OWNER = 10001


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    """The secrets that docs/deployment.md has an operator create."""
    folder = tmp_path / "secrets"
    folder.mkdir(mode=0o700)
    pem = Authority(tmp_path / "ca").issue("nginx").read_text(encoding="utf-8")
    written = {
        "admin-token": "an-admin-token-of-the-tests\n",
        "alerts-slack-url": "https://127.0.0.1:9/services/T/B/y\n",
        "grafana-password": "a-password-of-the-tests\n",
        "slack-url": "https://127.0.0.1:9/services/T/B/x\n",
        "source-main": f"{SECRET}\n",
        "tls-chain": pem,
        "tls-key": pem,
    }
    for name, text in written.items():
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(0o444)
    return folder


@dataclass(frozen=True, kw_only=True)
class Stack:
    """The relay's image and this machine's nginx, as compose.yaml puts them together."""

    relay: Container
    health_check: list[str]
    client: list[str]
    ca: Path
    secrets: Path

    def send(self, *more: str) -> subprocess.CompletedProcess[str]:
        """Send a lead by HTTPS, on the host of nginx."""
        secret = f"file:{self.secrets / 'source-main'}"
        url = "https://127.0.0.1/webhooks"
        command = [sys.executable, "-m", "relay", "send", "lead.captured", "--url", url, *more]
        return subprocess.run(
            [*self.client, *command, *(() if more else ("--secret", secret))],
            env=os.environ | {"SSL_CERT_FILE": str(self.ca)},
            capture_output=True,
            text=True,
            check=False,
        )

    def listens(self) -> bool:
        """Whether nginx takes connections."""
        connect = ["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/443"]
        return subprocess.run([*self.client, *connect], check=False).returncode == 0

    def is_healthy(self) -> bool:
        assert self.relay.running, self.relay.log.read_text()
        return self.relay.execute(*self.health_check).returncode == 0


@contextmanager
def nginx(files: dict[str, Path], folder: Path, *, host: list[str]) -> Iterator[None]:
    """Run nginx on a host, with these files in their places and nothing else in its folders."""
    if shutil.which("nginx") is None:
        pytest.skip("nginx is not installed")
    folder.mkdir()
    steps = [f"mount -t tmpfs tmpfs {place}" for place in ("/run", "/etc/nginx")]
    steps.append(f"mount --bind {folder} /var/log/nginx")
    for target, source in files.items():
        make = "mkdir -p" if source.is_dir() else "install -D /dev/null"
        # Into a folder that is mounted already nothing new may be put.
        steps.append(f"test -e {target} || {make} {target}")
        steps.append(f"mount --bind {shlex.quote(str(source))} {target}")
    steps.append("exec nginx -g 'daemon off;'")
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            [*host, "unshare", "--mount", "sh", "-euc", "\n".join(steps)],
            stdout=output,
            stderr=output,
        )
    try:
        yield
        assert process.poll() is None, (folder / "output").read_text()
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


@pytest.fixture
async def stack(
    document: dict[str, Any], image: Image, secrets: Path, tmp_path: Path
) -> AsyncIterator[Stack]:
    bits = document["networks"]["front"]["ipam"]["config"][0]["subnet"].partition("/")[2]
    ends = [f"{address(document, name)}/{bits}" for name in ("relay", "nginx")]
    volume = tmp_path / "store"
    volume.mkdir(mode=0o700)
    os.chown(volume, OWNER, OWNER)
    with cable(*ends) as (relay_host, nginx_host):
        relay = Container(
            image,
            volumes={"/var/lib/relay": volume},
            files=compose.files(document, "relay", secrets),
            log=tmp_path / "relay.log",
            host=relay_host,
        )
        files = compose.files(document, "nginx", secrets)
        with relay, nginx(files, tmp_path / "nginx", host=nginx_host):
            stack = Stack(
                relay=relay,
                health_check=document["services"]["relay"]["healthcheck"]["test"][1:],
                client=nginx_host,
                ca=tmp_path / "ca/ca.pem",
                secrets=secrets,
            )
            await until(stack.is_healthy, what="the relay is healthy")
            await until(stack.listens, what="nginx listens")
            yield stack


async def test_an_event_sent_by_https_is_stored(stack: Stack) -> None:
    sent = stack.send()
    assert sent.returncode == 0, sent.stdout + sent.stderr
    listed = stack.relay.execute("relay", "events", "list", "--json")
    (event,) = orjson.loads(listed.stdout)["events"]
    assert (event["source"], event["kind"]) == ("main", "lead.captured")


async def test_the_relay_logs_the_senders_address_from_nginx(stack: Stack) -> None:
    assert stack.send("--secret", "another-secret-than-theirs").returncode == 1
    lines = [orjson.loads(line) for line in stack.relay.log.read_bytes().splitlines()]
    (refused,) = [line for line in lines if line["event"] == "request.refused"]
    assert (refused["reason"], refused["client"]) == ("mismatch", "127.0.0.1")


async def test_an_edit_of_the_config_reaches_the_running_relay(stack: Stack) -> None:
    checked = stack.relay.execute("relay", "check-config")
    assert checked.returncode == 0, checked.stderr
    reloaded = stack.relay.execute("relay", "reload")
    assert reloaded.stdout == "reloaded; nothing changed\n"
    assert stack.relay.stop() == 0
