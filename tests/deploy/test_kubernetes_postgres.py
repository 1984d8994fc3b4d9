"""Several relays on one database, in Kubernetes: what differs from the base."""

import tomllib
from typing import Any

import pytest

from tests.deploy.kustomize import BASE, POSTGRES, built

SHARED = built(POSTGRES)
DEPLOYMENT: dict[str, Any] = SHARED.one("Deployment")["spec"]


def test_the_pod_is_the_bases_without_its_volume_and_spread_over_nodes() -> None:
    base = built(BASE)
    mounts = [each for each in base.relay["volumeMounts"] if each["name"] != "data"]
    assert SHARED.relay == base.relay | {"volumeMounts": mounts}
    spread = SHARED.pod["topologySpreadConstraints"]
    assert SHARED.pod == base.pod | {
        "containers": [SHARED.relay],
        "topologySpreadConstraints": spread,
    }
    assert [each["topologyKey"] for each in spread] == ["kubernetes.io/hostname"]


def test_the_config_is_the_bases_with_another_store() -> None:
    ours, bases = (tomllib.loads(objects.config) for objects in (SHARED, built(BASE)))
    assert ours.pop("store") == {"type": "postgres", "dsn": "file:/run/secrets/database-url"}
    del bases["store"]
    assert ours == bases


def test_every_kind_is_expected_and_no_volume_is_claimed() -> None:
    kinds = {each["kind"] for each in built(BASE)} - {"StatefulSet"}
    assert {each["kind"] for each in SHARED} == kinds | {"Deployment", "PodDisruptionBudget"}
    assert [each["metadata"]["name"] for each in SHARED.of("Service")] == ["relay"]
    assert "volumeClaimTemplates" not in DEPLOYMENT


def test_a_new_relay_is_ready_before_an_old_one_stops() -> None:
    assert DEPLOYMENT["strategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1},
    }


def test_one_relay_stays_while_nodes_are_drained() -> None:
    budget = SHARED.one("PodDisruptionBudget")["spec"]
    assert DEPLOYMENT["replicas"] > budget["minAvailable"] == 1
    assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


@pytest.mark.parametrize("place", ["budget", "spread"])
def test_its_selectors_match_the_pods(place: str) -> None:
    (spread,) = SHARED.pod["topologySpreadConstraints"]
    selector = {
        "budget": SHARED.one("PodDisruptionBudget")["spec"]["selector"],
        "spread": spread["labelSelector"],
    }[place]["matchLabels"]
    assert selector
    assert selector.items() <= SHARED.template["metadata"]["labels"].items()
