"""deploy/compose as Compose itself reads it; its client needs no engine for that."""

import json
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.deploy.image import ROOT

FOLDER = ROOT / "deploy" / "compose"


def read(client: Path, folder: Path = FOLDER, *, profiles: Sequence[str] = ()) -> dict[str, Any]:
    """The file as it will be used: defaults filled in, paths absolute, unknown keys refused."""
    chosen = [f"--profile={profile}" for profile in profiles]
    done = subprocess.run(
        [client, "--file", folder / "compose.yaml", *chosen, "config", "--format", "json"],
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def address(document: dict[str, Any], service: str) -> str:
    """The one that it has beside the others of the front."""
    found: str = document["services"][service]["networks"]["front"]["ipv4_address"]
    return found


def files(document: dict[str, Any], service: str, secrets: Path) -> dict[str, Path]:
    """The files mounted into a service: paths in the container and on this host.

    Secrets are taken from `secrets`, which stands in for the folder that only an operator has.
    """
    described = document["services"][service]
    bound = {
        volume["target"]: Path(volume["source"])
        for volume in described["volumes"]
        if volume["type"] == "bind"
    }
    for secret in described.get("secrets", []):
        place = Path(document["secrets"][secret["source"]]["file"])
        bound[secret.get("target") or f"/run/secrets/{secret['source']}"] = secrets / place.name
    return dict(sorted(bound.items()))


def seconds(duration: str) -> float:
    """Read `1m0s` or `30s`."""
    units = {"h": 3600, "m": 60, "s": 1}
    return sum(int(number) * units[unit] for number, unit in re.findall(r"(\d+)([hms])", duration))
