"""A real relay with the config and the secrets of the cluster."""

import asyncio
import contextlib
import secrets
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from relay import config
from relay.config import Config
from relay.core.errors import ConfigError
from tests.app.reloading import body
from tests.caller import SECRET, post
from tests.deploy.kustomize import BASE, FOLDER, POSTGRES, SIDECAR, Objects, built
from tests.guarantees.process import http_client, until
from tests.ports import free_port
from tests.postgres.server import PostgresServer
from tests.service import serving

GOOD = {
    "source-main": SECRET,
    "admin-token": secrets.token_hex(32),
    "slack-url": "https://hooks.slack.invalid/services/T0/B0/x",
    "crm-url": "https://crm.invalid/hook",
    "crm-signing": "whsec_bWFrZSBpdCB3aXRoIG9wZW5zc2wgcmFuZA==",
    "database-url": "host=postgres.invalid dbname=relay user=relay",
}


def example() -> dict[str, str]:
    text = (FOLDER / "secret.example.yaml").read_text(encoding="utf-8")
    values: dict[str, str] = yaml.safe_load(text)["stringData"]
    return values


def mounted(folder: Path, objects: Objects, values: dict[str, str]) -> Path:
    """The config with the secrets beside it, in a folder instead of the container's places."""
    for name, value in values.items():
        (folder / name).write_text(value, encoding="utf-8")
    text = objects.config.replace("file:/run/secrets/", f"file:{folder}/")
    text = text.replace('"/var/lib/relay/', f'"{folder}/')
    text = text.replace("0.0.0.0:8080", "127.0.0.1:0").replace("0.0.0.0:9464", "127.0.0.1:0")
    file = folder / "config.toml"
    file.write_text(text, encoding="utf-8")
    return file


def loaded(folder: Path, objects: Objects, values: dict[str, str]) -> Config:
    return config.load(mounted(folder, objects, values), environ={})


def test_the_config_has_no_fault_once_the_secret_is_filled_in(
    tmp_path: Path, objects: Objects
) -> None:
    assert set(GOOD) == set(example())
    file = mounted(tmp_path, objects, GOOD)
    assert config.load(file, environ={}).warnings == ()
    # Again with the listeners of the pod.
    file.write_text(objects.config.replace("file:/run/secrets/", f"file:{tmp_path}/"))
    read = config.load(file, environ={})
    assert (read.server.listen, read.server.admin_listen) == ("0.0.0.0:8080", "0.0.0.0:9464")
    assert read.warnings == ()


def test_each_placeholder_of_an_example_secret_is_refused(
    tmp_path: Path,
) -> None:
    with pytest.raises(ConfigError) as refusal:
        loaded(tmp_path, built(BASE), example())
    assert [fault.path for fault in refusal.value.faults] == [
        "admin.token",
        "source[0] (main).secrets[0]",
        "sink[0] (sales).url",
        "sink[1] (crm).url",
        "sink[1] (crm).signing_secrets[0]",
    ]


def paths(objects: Objects) -> list[str]:
    """What the kubelet and Prometheus ask for."""
    found = [
        *(each["httpGet"]["path"] for name, each in objects.relay.items() if "Probe" in name),
        *(each["path"] for each in objects.one("PodMonitor")["spec"]["podMetricsEndpoints"]),
    ]
    assert len(found) == 4
    return found


async def test_the_relay_serves_the_paths_of_probes_and_prometheus(
    tmp_path: Path, on_a_volume: Objects
) -> None:
    async with serving(loaded(tmp_path, on_a_volume, GOOD)) as relay, http_client() as client:
        for path in paths(on_a_volume):
            answer = await client.get(f"{relay.service.admin.url}{path}")
            assert answer.status_code == 200, path


@pytest.mark.servers
async def test_only_readiness_follows_the_database(tmp_path: Path, server: PostgresServer) -> None:
    objects = built(POSTGRES)
    settings = loaded(tmp_path, objects, GOOD | {"database-url": server.dsn})
    async with serving(settings) as relay, http_client() as client:

        async def failing() -> set[str]:
            asked = {path: f"{relay.service.admin.url}{path}" for path in paths(objects)}
            return {
                path for path, url in asked.items() if (await client.get(url)).status_code != 200
            }

        async def fail(*expected: str) -> None:
            async def known() -> bool:
                return await failing() == {*expected}

            await until(known, what=f"only {expected} fail")

        await fail()
        await asyncio.to_thread(server.kill)
        await fail("/readyz")
        await asyncio.to_thread(server.start)
        await fail()


@contextlib.asynccontextmanager
async def application(port: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """The sidecar's neighbour, started as in its container; SIGTERM has to end it."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, SIDECAR / "application.py"),
        env={"PORT": str(port)},
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        await until(lambda: is_ready(port), what="the application")
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0


async def is_ready(port: int) -> bool:
    """Run the application's readiness probe."""
    asked = await asyncio.create_subprocess_exec(
        *(sys.executable, SIDECAR / "application.py", "ready"),
        env={"PORT": str(port)},
        stderr=asyncio.subprocess.DEVNULL,
    )
    return await asked.wait() == 0


async def test_the_sidecar_delivers_to_its_application_once_it_is_ready(
    tmp_path: Path,
) -> None:
    port = free_port()
    file = mounted(tmp_path, built(SIDECAR), GOOD)
    text = file.read_text(encoding="utf-8").replace("127.0.0.1:8000", f"127.0.0.1:{port}")
    file.write_text(text, encoding="utf-8")
    async with serving(config.load(file, environ={})) as relay:
        # The sidecar starts first, and takes events before the application is there.
        assert not await is_ready(port)
        assert (await relay.ask(post(body("early")))).status == 202
        await relay.until_counted("relay_attempts_total", "retry", "application")
        async with application(port) as neighbour:
            assert neighbour.stdout is not None
            async with asyncio.timeout(30):
                assert await neighbour.stdout.readline() == b"lead.captured early\n"
            await relay.until_counted("relay_deliveries_total", "delivered", "application")
