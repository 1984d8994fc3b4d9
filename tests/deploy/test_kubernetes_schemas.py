"""Every object against the schemas of the Kubernetes API, and of the Prometheus Operator."""

from copy import deepcopy
from importlib.resources import files
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.deploy.cluster import BASE, FOLDER, OVERLAYS, Object, Objects, built
from tests.deploy.operator_schemas import SCHEMAS

OLDEST = 30
"""Of Kubernetes 1.x; the sleep of preStop is there from then on."""

VERSIONS = sorted(
    minor
    for each in files("kubernetes_validate").joinpath("kubernetes-json-schema").iterdir()
    if (minor := int(each.name.split(".")[1])) >= OLDEST
)


def judge(each: Object, minor: int) -> None:
    """Raises ValidationError for an object that the API would not take."""
    if each["kind"] in SCHEMAS:
        jsonschema.validate(each, SCHEMAS[each["kind"]])
    else:
        kubernetes_validate.validate(each, f"1.{minor}", strict=True)


@pytest.fixture(params=OVERLAYS)
def objects(request: pytest.FixtureRequest) -> Objects:
    return built(OVERLAYS[request.param])


def test_the_versions_reach_from_the_oldest_that_is_supported_to_a_recent_one() -> None:
    assert VERSIONS[0] == OLDEST
    assert len(VERSIONS) >= 6


@pytest.mark.parametrize("minor", VERSIONS)
def test_every_object_is_valid(objects: Objects, minor: int) -> None:
    for each in objects:
        judge(each, minor)


@pytest.mark.parametrize("minor", VERSIONS)
def test_the_example_of_the_secret_is_valid(minor: int) -> None:
    judge(yaml.safe_load((FOLDER / "secret.example.yaml").read_text(encoding="utf-8")), minor)


def test_the_sleep_of_prestop_is_not_known_before() -> None:
    with pytest.raises(kubernetes_validate.ValidationError, match="sleep"):
        judge(built(BASE).one("StatefulSet"), 28)


SPOILT: dict[str, tuple[str, tuple[str | int, ...], Any]] = {
    "an unknown key": ("StatefulSet", ("spec", "template", "spec", "volume"), []),
    "an unknown key of a container": (
        "StatefulSet",
        ("spec", "template", "spec", "containers", 0, "livenessprobe"),
        {},
    ),
    "a word for a number": ("StatefulSet", ("spec", "replicas"), "one"),
    "an unknown key of a policy": ("NetworkPolicy", ("spec", "ingres"), []),
    "an unknown key of a monitor": ("PodMonitor", ("spec", "podMetricsEndpoint"), []),
    "an odd interval": ("PodMonitor", ("spec", "podMetricsEndpoints", 0, "interval"), "often"),
    "an unknown key of a rule": ("PrometheusRule", ("spec", "groups", 0, "rules", 0, "exp"), "up"),
    "a rule without an expression": ("PrometheusRule", ("spec", "groups", 0, "rules", 0), {}),
}


@pytest.mark.parametrize("fault", SPOILT)
def test_a_spoilt_object_is_refused(fault: str) -> None:
    kind, (*way, last), value = SPOILT[fault]
    spoilt = deepcopy(built(BASE).one(kind))
    place: Any = spoilt
    for step in way:
        place = place[step]
    place[last] = value
    with pytest.raises((kubernetes_validate.ValidationError, jsonschema.ValidationError)):
        judge(spoilt, VERSIONS[-1])
