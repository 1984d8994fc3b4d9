"""The Kubernetes files, built as for the cluster."""

import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "deploy" / "kubernetes"
BASE = FOLDER / "base"
SIDECAR = FOLDER / "overlays" / "sidecar"
POSTGRES = FOLDER / "overlays" / "postgres"
OVERLAYS = {"base": BASE, "sidecar": SIDECAR, "postgres": POSTGRES}
ON_A_VOLUME = ("base", "sidecar")
"""The overlays of one relay with a store in a file."""

KUBECTL = Path(sys.executable).with_name("kubectl")
"""The dev group's, so that all machines build with the same one."""

Object = dict[str, Any]


@cache
def built(folder: Path) -> "Objects":
    """Build a folder once; for folders that do not change."""
    return build(folder)


def build(folder: Path) -> "Objects":
    """Build the objects that `kubectl apply -k FOLDER` would send."""
    done = subprocess.run(
        [KUBECTL, "kustomize", folder], capture_output=True, text=True, timeout=60, check=False
    )
    # It warns of deprecated fields on stderr.
    assert (done.returncode, done.stderr) == (0, "")
    return Objects(yaml.load_all(done.stdout, yaml.CSafeLoader))


class Objects(tuple[Object, ...]):
    """All objects of one build."""

    __slots__ = ()

    def of(self, kind: str) -> Iterator[Object]:
        return (each for each in self if each["kind"] == kind)

    def one(self, kind: str, name: str = "relay") -> Object:
        (found,) = (each for each in self.of(kind) if each["metadata"]["name"] == name)
        return found

    @property
    def workload(self) -> Object:
        """What makes the relay's pods."""
        (found,) = (*self.of("StatefulSet"), *self.of("Deployment"))
        return found

    @property
    def template(self) -> Object:
        template: Object = self.workload["spec"]["template"]
        return template

    @property
    def pod(self) -> Object:
        pod: Object = self.template["spec"]
        return pod

    @property
    def containers(self) -> list[Object]:
        return [*self.pod.get("initContainers", []), *self.pod["containers"]]

    @property
    def relay(self) -> Object:
        """The relay's container, wherever in the pod it is."""
        (found,) = [each for each in self.containers if each["name"] == "relay"]
        return found

    @property
    def config(self) -> str:
        text: str = self.one("ConfigMap", "relay-config")["data"]["config.toml"]
        return text
