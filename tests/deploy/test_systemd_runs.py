"""The units of deploy/systemd on a real systemd, with all restrictions."""

import asyncio
import os
import re
import shlex
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import httpx
import orjson
import pytest

from tests.deploy import units
from tests.deploy.load import Load, under_load
from tests.deploy.prometheus import rules
from tests.deploy.service_manager import PROGRAM, ServiceManager, why_not
from tests.deploy.units import SECRETS, Installed
from tests.guarantees.destinations import Destination
from tests.guarantees.process import until
from tests.guarantees.traffic import lead, post

DOCUMENT = units.ROOT / "docs" / "deployment.md"
RESTARTS = 2

# One sink of each type with a client of its own; their destinations are closed ports.
_KINDS = """
[[sink]]
name = "amqp"
type = "amqp"
url = "amqp://relay:secret@127.0.0.1:9/"
routing_key = "relay"
[[sink]]
name = "kafka"
type = "kafka"
brokers = "127.0.0.1:9"
topic = "relay"
[[sink]]
name = "mqtt"
type = "mqtt"
url = "mqtt://127.0.0.1:9"
[[sink]]
name = "nats"
type = "nats"
servers = "nats://127.0.0.1:9"
[[sink]]
name = "pubsub"
type = "pubsub"
project = "my-project-123"
topic = "relay"
emulator_host = "127.0.0.1:9"
[[sink]]
name = "redis"
type = "redis"
url = "redis://127.0.0.1:9"
[[sink]]
name = "sqs"
type = "sqs"
queue_url = "http://127.0.0.1:9/123456789012/relay"
region = "eu-west-1"
endpoint_url = "http://127.0.0.1:9"
aws_access_key_id = "AKIAIOSFODNN7EXAMPLE"
aws_secret_access_key = "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY"
[[sink]]
name = "console"
type = "stdout"
"""
_METRIC = re.compile(r"(?<![\w:])(?:process|relay)_[a-z_]+")
PROCESS = {
    *("process_cpu_seconds_total", "process_resident_memory_bytes"),
    *("process_open_fds", "process_max_fds"),
}
"""Process metrics that dashboards and runbook read."""

_NOBODY = re.compile("refused|could not connect")
_FAR_KINDS = ("amqp", "kafka", "mqtt", "nats", "pubsub", "redis", "sqs", "sales")


@pytest.fixture(scope="module", autouse=True)
async def systemd(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skip all tests without systemd, or without permission to run it."""
    if not PROGRAM.exists():
        pytest.skip("systemd is not installed")
    if not units.PYTHON.exists():
        pytest.skip("declared: this Python is not the distribution's own")
    if why := await why_not(tmp_path_factory.mktemp("probe")):
        pytest.skip(f"declared: {why}")


@pytest.fixture
async def destination() -> AsyncIterator[Destination]:
    async with Destination("crm") as destination:
        yield destination


@pytest.fixture
async def host(
    tmp_path: Path, destination: Destination, request: pytest.FixtureRequest
) -> AsyncIterator[Installed]:
    """An installed relay with the shipped sinks, and those of a parameter; nothing is started."""
    sinks: str = getattr(request, "param", "")
    async with units.installed(tmp_path, crm_url=destination.url, sinks=sinks) as host:
        yield host


# To load the clients of all sink types takes nearly as long as the rest of a start.
with_every_sink_type = pytest.mark.parametrize(
    "host", [_KINDS], ids=["every_sink_type"], indirect=True
)


@with_every_sink_type
async def test_it_runs_with_all_restrictions(host: Installed, destination: Destination) -> None:
    host.run("systemctl", "start", "relay.service")
    shown = host.shows("relay.service", "ActiveState", "MainPID")
    assert shown["ActiveState"] == "active"
    await until(lambda: _status(host).endswith("0 pending"), what="its first status")
    status = host.run("cat", f"/proc/{shown['MainPID']}/status").stdout
    assert re.search(r"^NoNewPrivs:\t1$", status, re.MULTILINE)
    assert re.search(r"^Seccomp:\t2$", status, re.MULTILINE)
    assert set(re.findall(r"^Cap\w+:\t(\w+)$", status, re.MULTILINE)) == {"0" * 16}
    assert not re.search(r"^Uid:.*\b0\b", status, re.MULTILINE)
    listed = host.run("ls", "-l", "/run/credentials/relay.service").stdout.splitlines()[1:]
    # A newer systemd lets the user in by an ACL, whose mask is shown as the group's rights.
    modes = [line.split()[0] for line in listed]
    assert modes in (["-r--------"] * len(SECRETS), ["-r--r-----+"] * len(SECRETS))
    assert host.run("stat", "--format=%a", "/var/lib/relay/").stdout == "700\n"
    assert (await post(host.url, lead("evt_1"))).status_code == 202
    await until(lambda: bool(destination.taken), what="the delivery")
    # The clients of all sink types work under the restrictions, up to connecting.
    await until(lambda: _reasons(host).keys() == set(_FAR_KINDS), what="a try of each kind")
    unlike = {kind: why for kind, why in _reasons(host).items() if not _NOBODY.search(why)}
    assert unlike == {}
    assert '"id":"evt_1"' in host.told()
    assert "Traceback" not in host.told()


def _status(host: Installed) -> str:
    return host.shows("relay.service", "StatusText")["StatusText"]


def _reasons(host: Installed) -> dict[str, str]:
    """Each sink's reason for a failed delivery, from the log."""
    lines = [orjson.loads(line) for line in host.told().splitlines() if line.startswith("{")]
    return {line["sink"]: line["reason"] for line in lines if line.get("event") == "delivery.retry"}


@with_every_sink_type
async def test_the_unit_exposes_every_metric_of_the_rules(host: Installed) -> None:
    host.run("systemctl", "start", "relay.service")
    exposed = (
        await asyncio.to_thread(httpx.get, f"http://127.0.0.1:{host.admin_port}/metrics")
    ).text
    read = {name for rule in rules("alert") for name in _METRIC.findall(rule["expr"])}
    assert {*PROCESS, *read} - set(_METRIC.findall(exposed)) == set()


async def test_no_request_fails_over_restarts_under_load(host: Installed) -> None:
    host.run("systemctl", "start", "relay.service")
    load = Load(host.url)
    async with under_load(load, "on_one_connection"):
        for number in range(RESTARTS):
            await until(partial(load.has_acknowledged, 100 * (number + 1)), what="the load")
            await asyncio.to_thread(host.run, "systemctl", "restart", "relay.service")
        await until(partial(load.has_acknowledged, 100 * (RESTARTS + 1)), what="the load")
    assert load.others == []
    sys.stdout.write(
        f"{len(load.acknowledged)} requests, the slowest took {load.slowest_s:.2f} s\n"
    )
    assert host.shows("relay.service", "NRestarts", "Result") == {
        "NRestarts": "0",
        "Result": "success",
    }


async def test_a_request_starts_it_and_another_waits_while_it_is_killed(
    host: Installed,
) -> None:
    host.quicker()
    host.run("systemctl", "start", "relay.socket")
    assert host.shows("relay.service", "ActiveState") == {"ActiveState": "inactive"}
    assert (await post(host.url, lead("evt_1"))).status_code == 202
    host.run("systemctl", "kill", "--signal=SIGKILL", "relay.service")
    assert (await post(host.url, lead("evt_2"))).status_code == 202
    assert host.shows("relay.service", "NRestarts") == {"NRestarts": "1"}


async def test_a_hung_relay_is_replaced_and_waiting_requests_are_served(host: Installed) -> None:
    host.quicker()
    host.run("systemctl", "start", "relay.service")
    host.run("kill", "-STOP", host.shows("relay.service", "MainPID")["MainPID"])
    assert (await post(host.url, lead("evt_1"))).status_code == 202
    assert host.shows("relay.service", "NRestarts") == {"NRestarts": "1"}


@with_every_sink_type
async def test_a_reload_is_applied_and_a_refused_one_changes_nothing(host: Installed) -> None:
    host.run("systemctl", "start", "relay.service")
    host.run("systemctl", "reload", "relay.service")
    await until(lambda: '"config.reloaded"' in host.told(), what="the reload")
    host.run("sed", "--in-place", "s/^name = .redis.$/nome = 7/", "/etc/relay/config.toml")
    command = ("/opt/relay/bin/relay", "reload", "--config", "/etc/relay/config.toml")
    verdict = host.run(*command, check=False)
    assert verdict.returncode == 1
    assert verdict.stdout.startswith("refused; the relay keeps its current config\n")
    assert "nome: is not a known key" in verdict.stdout
    assert host.shows("relay.service", "ActiveState") == {"ActiveState": "active"}
    assert (await post(host.url, lead("evt_1"))).status_code == 202


async def test_a_bad_config_is_not_retried_endlessly(host: Installed) -> None:
    host.quicker()
    host.run("sed", "--in-place", "s/^listen/lisden/", "/etc/relay/config.toml")
    assert host.run("systemctl", "start", "relay.service", check=False).returncode != 0
    shown = host.shows("relay.service", "ActiveState", "ExecMainStatus", "NRestarts")
    assert shown == {
        "ActiveState": "failed",
        "ExecMainStatus": str(os.EX_CONFIG),
        "NRestarts": "0",
    }
    assert "server.lisden: is not a known key; did you mean listen?" in host.told()
    # Each request to the socket starts it again, until the start limit stops both.
    with pytest.raises(httpx.TransportError):
        await post(host.url, lead("evt_1"))
    assert host.shows("relay.socket", "Result") == {"Result": "service-start-limit-hit"}


def _steps() -> list[str]:
    """The commands of the documentation, in their order."""
    section = DOCUMENT.read_text().partition("\n## systemd\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    return [line.strip() for block in blocks for line in block.splitlines()]


async def test_the_documented_steps_install_a_working_relay(tmp_path: Path) -> None:
    """Word for word, on the shipped ports: in a network namespace of its own."""
    manager = ServiceManager(tmp_path, install=units.program(), apart=("net",))
    async with units.running(manager) as host:
        said = {}
        for step in _steps():
            asked = re.match(r"cat > /etc/relay/secrets/(\S+)", step)
            typed = units.SECRETS[asked[1]] + "\n" if asked else ""
            shell = f"export PATH=$PATH:/opt/relay/bin; cd {shlex.quote(str(units.ROOT))}; {step}"
            said[step] = host.run("bash", "-euc", shell, stdin=typed).stdout
        (sent,) = [text for step, text in said.items() if step.startswith("relay send")]
        assert "202" in sent
        assert "sinks active" in said["systemctl status relay.service"]
        assert "running" in said["relay status --config /etc/relay/config.toml"]
        for unit in ("relay.service", "relay.socket"):
            assert host.shows(unit, "UnitFileState") == {"UnitFileState": "enabled"}
