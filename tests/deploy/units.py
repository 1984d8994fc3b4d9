"""The units of deploy/systemd on a real systemd, with the relay installed."""

import shlex
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import orjson

import relay
from tests.deploy.service_manager import ServiceManager
from tests.guarantees.process import SECRET
from tests.ports import free_port

ROOT = Path(relay.__file__).parent.parent
FOLDER = ROOT / "deploy" / "systemd"

SECRETS = {
    "admin-token": "0f9a8b7c6d5e4f3a2b1c9d8e7f6a5b4c",
    "source-main": SECRET,
    "slack-url": "http://127.0.0.1:9/services/T/B/x",
    "crm-url": "http://127.0.0.1:9/hook",
    "crm-signing": "whsec_bWFrZSBpdCB3aXRoIG9wZW5zc2wgcmFuZA==",
}
"""The files that deploy/systemd/relay.toml refers to; port 9 is closed."""

PYTHON = Path(f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}")
"""Debian's own: another one may live in a home, and homes are hidden from the relay."""

# So may the packages that this Python has.
_PROGRAM = """
mkdir -p /opt/relay/bin /opt/packages
mount --bind {packages} /opt/packages
cp -rp {source} /opt/relay/relay
cat > /opt/relay/bin/relay <<'END'
#!/bin/sh
export PYTHONPATH=/opt/relay:/opt/packages
exec {python} -m relay "$@"
END
chmod 0755 /opt/relay/bin/relay
"""

_FILES = """
mkdir -p /etc/relay/secrets
chmod 0700 /etc/relay/secrets
cp {config} /etc/relay/config.toml
cp {secrets}/* /etc/relay/secrets/
"""


def program() -> str:
    """Shell commands that install the relay at the units' paths."""
    return _PROGRAM.format(
        packages=shlex.quote(str(Path(orjson.__file__).parent.parent)),
        source=shlex.quote(str(ROOT / "relay")),
        python=PYTHON,
    )


class Installed(ServiceManager):
    """A systemd with the relay's units as shipped, on free ports."""

    def __init__(self, folder: Path, *, crm_url: str, sinks: str = "") -> None:
        """`sinks` are TOML tables behind those of the config."""
        self.port, self.admin_port = free_port(), free_port()
        config, secrets = folder / "relay.toml", folder / "secrets"
        config.write_text(self._config() + sinks)
        secrets.mkdir()
        for name, value in {**SECRETS, "crm-url": crm_url}.items():
            (secrets / name).write_text(value + "\n")
        files = _FILES.format(config=shlex.quote(str(config)), secrets=shlex.quote(str(secrets)))
        super().__init__(folder, install=program() + files)
        for name in ("relay.service", "relay.socket"):
            self.unit(name, (FOLDER / name).read_text())
        self.unit("relay.service.d/sinks.conf", (FOLDER / "sinks.conf").read_text())
        output = f"append:{folder / 'output'}"
        self.unit(
            "relay.service.d/test.conf",
            f"[Service]\nStandardOutput={output}\nStandardError={output}\n",
        )
        self.unit(
            "relay.socket.d/test.conf",
            f"[Socket]\nListenStream=\nListenStream=127.0.0.1:{self.port}\n",
        )

    def _config(self) -> str:
        text = (FOLDER / "relay.toml").read_text()
        text = text.replace(":9464", f":{self.admin_port}")
        text = text.replace('drain_timeout = "10s"', 'drain_timeout = "2s"')
        # A layer in memory may be small.
        return text.replace('/relay.db"\n', '/relay.db"\nmin_free = "1MiB"\n')

    def quicker(self) -> None:
        """Shorten the unit's waits to seconds; call it before a start."""
        self.unit(
            "relay.service.d/quicker.conf",
            "[Unit]\nStartLimitBurst=3\n[Service]\nWatchdogSec=5\nRestartSec=1\n",
        )
        self.run("systemctl", "daemon-reload")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/webhooks"


@asynccontextmanager
async def installed(folder: Path, *, crm_url: str, sinks: str = "") -> AsyncIterator[Installed]:
    """Systemd with everything installed; no unit is started yet."""
    async with running(Installed(folder, crm_url=crm_url, sinks=sinks)) as host:
        yield host


Host = TypeVar("Host", bound=ServiceManager)


@asynccontextmanager
async def running(manager: Host) -> AsyncIterator[Host]:
    try:
        await manager.start()
        yield manager
    finally:
        await manager.stop()
