"""Several relays on one database, in Kubernetes: what differs from the base."""

import tomllib
from typing import Any

import pytest

from tests.deploy.kustomize import BASE, POSTGRES, Objects, built


@pytest.fixture
def shared() -> Objects:
    return built(POSTGRES)


@pytest.fixture
def deployment(shared: Objects) -> dict[str, Any]:
    spec: dict[str, Any] = shared.one("Deployment")["spec"]
    return spec


def test_the_pod_is_the_bases_without_its_volume_and_spread_over_nodes(shared: Objects) -> None:
    base = built(BASE)
    mounts = [each for each in base.relay["volumeMounts"] if each["name"] != "data"]
    assert shared.relay == base.relay | {"volumeMounts": mounts}
    spread = shared.pod["topologySpreadConstraints"]
    assert shared.pod == base.pod | {
        "containers": [shared.relay],
        "topologySpreadConstraints": spread,
    }
    assert [each["topologyKey"] for each in spread] == ["kubernetes.io/hostname"]


def test_the_config_is_the_bases_with_another_store(shared: Objects) -> None:
    ours, bases = (tomllib.loads(objects.config) for objects in (shared, built(BASE)))
    assert ours.pop("store") == {"type": "postgres", "dsn": "file:/run/secrets/database-url"}
    del bases["store"]
    assert ours == bases


def test_every_kind_is_expected_and_no_volume_is_claimed(
    shared: Objects, deployment: dict[str, Any]
) -> None:
    kinds = {each["kind"] for each in built(BASE)} - {"StatefulSet"}
    assert {each["kind"] for each in shared} == kinds | {"Deployment", "PodDisruptionBudget"}
    assert [each["metadata"]["name"] for each in shared.of("Service")] == ["relay"]
    assert "volumeClaimTemplates" not in deployment


def test_a_new_relay_is_ready_before_an_old_one_stops(deployment: dict[str, Any]) -> None:
    assert deployment["strategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1},
    }


def test_one_relay_stays_while_nodes_are_drained(
    shared: Objects, deployment: dict[str, Any]
) -> None:
    budget = shared.one("PodDisruptionBudget")["spec"]
    assert deployment["replicas"] > budget["minAvailable"] == 1
    assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


@pytest.mark.parametrize("place", ["budget", "spread"])
def test_its_selectors_match_the_pods(place: str, shared: Objects) -> None:
    (spread,) = shared.pod["topologySpreadConstraints"]
    selector = {
        "budget": shared.one("PodDisruptionBudget")["spec"]["selector"],
        "spread": spread["labelSelector"],
    }[place]["matchLabels"]
    assert selector
    assert selector.items() <= shared.template["metadata"]["labels"].items()
