"""Every object against the schemas of the Kubernetes API, and of the Prometheus Operator."""

from copy import deepcopy
from importlib.resources import files
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.deploy.kustomize import BASE, FOLDER, OVERLAYS, Object, built
from tests.deploy.operator_schemas import SCHEMAS

OLDEST = 30
"""Of Kubernetes 1.x; the sleep of preStop is there from then on."""

VERSIONS = sorted(
    minor
    for each in files("kubernetes_validate").joinpath("kubernetes-json-schema").iterdir()
    if (minor := int(each.name.split(".")[1])) >= OLDEST
)


def validate(each: Object, minor: int) -> None:
    """Raises ValidationError for an object that the API would not take."""
    if each["kind"] in SCHEMAS:
        jsonschema.validate(each, SCHEMAS[each["kind"]])
    else:
        kubernetes_validate.validate(each, f"1.{minor}", strict=True)


def test_six_versions_or_more_are_checked_from_the_oldest_supported_one() -> None:
    assert VERSIONS[0] == OLDEST
    assert len(VERSIONS) >= 6


@pytest.mark.parametrize("minor", VERSIONS)
def test_every_object_is_valid(minor: int) -> None:
    example = yaml.safe_load((FOLDER / "secret.example.yaml").read_text(encoding="utf-8"))
    for each in (example, *(each for folder in OVERLAYS.values() for each in built(folder))):
        validate(each, minor)


SPOILT: dict[str, tuple[str, tuple[str | int, ...], Any]] = {
    "an unknown key of a monitor": ("PodMonitor", ("spec", "podMetricsEndpoint"), []),
    "an odd interval": ("PodMonitor", ("spec", "podMetricsEndpoints", 0, "interval"), "often"),
}


@pytest.mark.parametrize("fault", SPOILT)
def test_an_invalid_object_is_refused(fault: str) -> None:
    kind, (*way, last), value = SPOILT[fault]
    spoilt = deepcopy(built(BASE).one(kind))
    place: Any = spoilt
    for step in way:
        place = place[step]
    place[last] = value
    with pytest.raises(jsonschema.ValidationError):
        validate(spoilt, VERSIONS[-1])
