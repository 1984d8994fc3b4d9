"""deploy/systemd as files: valid units that agree with the config."""

import os
import re
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path
from shutil import which

import pytest

from relay import config
from relay.core.config_values import Duration
from tests.deploy.units import FOLDER, SECRETS
from tests.service import store_file

CREDENTIALS = "/run/credentials/relay.service"
PROGRAM = "/opt/relay/bin/relay"
PARTING_S = 5
RETIRING_S = 2

EXPOSURE_MAX = 2.0

systemd = pytest.mark.skipif(which("systemd-analyze") is None, reason="systemd is not installed")


def read(name: str) -> ConfigParser:
    """A unit file, the last of each key; the first line of a credential is in `credentials`."""
    parser = ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(FOLDER / name)
    return parser


def credentials() -> dict[str, str]:
    """The file of each credential that the unit and the drop-in load."""
    text = (FOLDER / "relay.service").read_text() + (FOLDER / "sinks.conf").read_text()
    return dict(re.findall(r"^LoadCredential=([^:]+):(.+)$", text, re.MULTILINE))


@systemd
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    for name in ("relay.service", "relay.socket"):
        text = (FOLDER / name).read_text()
        # It looks for the program, which is not installed here.
        (tmp_path / name).write_text(text.replace(PROGRAM, sys.executable))
    (tmp_path / "relay.service.d").mkdir()
    (tmp_path / "relay.service.d/sinks.conf").write_text((FOLDER / "sinks.conf").read_text())
    done = analyze("verify", "--man=no", tmp_path / "relay.service", tmp_path / "relay.socket")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@systemd
def test_the_exposure_level_is_below_two() -> None:
    done = analyze("security", "--offline=true", "--no-pager", FOLDER / "relay.service")
    (found,) = re.findall(r"Overall exposure level for relay\.service: ([\d.]+) ", done.stdout)
    sys.stdout.write(f"exposure {found}\n")
    assert float(found) < EXPOSURE_MAX


def analyze(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", *map(str, arguments)],
        env={**os.environ, "LC_ALL": "C"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_the_config_has_no_fault_and_no_warning(tmp_path: Path) -> None:
    loaded = load(tmp_path)
    assert loaded.warnings == ()
    assert [sink.name for sink in loaded.sinks] == ["sales", "crm"]


def load(folder: Path) -> config.Config:
    """The config with the credentials in another folder, and with no environment."""
    for name, value in SECRETS.items():
        (folder / name).write_text(value + "\n")
    path = folder / "config.toml"
    path.write_text((FOLDER / "relay.toml").read_text().replace(CREDENTIALS, str(folder)))
    return config.load(path, {})


def test_the_units_load_exactly_the_credentials_of_the_config() -> None:
    named = re.findall(rf'"file:{CREDENTIALS}/([^"]+)"', (FOLDER / "relay.toml").read_text())
    assert sorted(named) == sorted(credentials()) == sorted(SECRETS)
    assert all(path == f"/etc/relay/secrets/{name}" for name, path in credentials().items())


def test_the_socket_listens_at_the_configs_address(tmp_path: Path) -> None:
    socket = read("relay.socket")["Socket"]
    assert socket["ListenStream"] == load(tmp_path).server.listen
    assert socket["FileDescriptorName"] == "public"


def test_the_store_is_in_the_state_directory(tmp_path: Path) -> None:
    folder = read("relay.service")["Service"]["StateDirectory"]
    assert store_file(load(tmp_path)) == Path(f"/var/lib/{folder}/relay.db")


def test_the_stop_timeout_covers_a_drain_twice(tmp_path: Path) -> None:
    drain = load(tmp_path).server.drain_timeout
    patience = Duration.parse(read("relay.service")["Service"]["TimeoutStopSec"] + "s")
    assert patience.seconds > 2 * drain.seconds + PARTING_S + RETIRING_S + 10


def test_a_refused_config_is_not_retried() -> None:
    service = read("relay.service")["Service"]
    assert service["RestartPreventExitStatus"] == str(os.EX_CONFIG)


def test_the_start_limit_stops_socket_loops_but_not_failure_restarts() -> None:
    unit, service = read("relay.service")["Unit"], read("relay.service")["Service"]
    window_s, burst = int(unit["StartLimitIntervalSec"]), int(unit["StartLimitBurst"])
    assert window_s / int(service["RestartSec"]) < burst
    # A refused config takes less than 2 s to be found, and the socket waits for nothing.
    assert burst * 2 < window_s


def test_the_program_is_the_installed_one() -> None:
    command = read("relay.service")["Service"]["ExecStart"]
    assert command.split() == [PROGRAM, "serve", "--config", "/etc/relay/config.toml"]
