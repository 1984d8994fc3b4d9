"""The Kubernetes files: built for real, valid for every version they are for, and consistent."""

import re
import tomllib
from collections.abc import Iterator
from typing import Any

import yaml

from deploy.kubernetes.prometheus_rule import SOURCE, TARGET, manifest
from relay.admin.readiness import PROBE_TIMEOUT_S
from relay.app.service import ADMIN_GRACE
from relay.core.config_values import Duration, Size
from tests.deploy.kustomize import BASE, FOLDER, OVERLAYS, ROOT, SIDECAR, Object, Objects, built

DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
GIBIBYTE = 1 << 30
APPLICATION_S = 10
"""Time for the application to end, from the overlay's comment."""


def config(objects: Objects) -> dict[str, Any]:
    return tomllib.loads(objects.config)


def test_a_kustomization_uses_every_file_in_its_folder() -> None:
    for folder in OVERLAYS.values():
        files = {each.name for each in folder.iterdir() if each.is_file()}
        text = (folder / "kustomization.yaml").read_text(encoding="utf-8")
        named = set(re.findall(r"- (?:path: )?([\w.-]+\.(?:yaml|toml|py))$", text, re.MULTILINE))
        assert files == named | {"kustomization.yaml"}


def test_all_objects_are_in_one_namespace(objects: Objects) -> None:
    assert len({each["metadata"]["namespace"] for each in objects}) == 1


def test_deleting_the_objects_keeps_volume_and_secret(
    on_a_volume: Objects,
) -> None:
    assert {each["kind"] for each in on_a_volume} == {
        *("ConfigMap", "NetworkPolicy", "PodMonitor", "PrometheusRule", "Service", "StatefulSet"),
    }
    kept = on_a_volume.one("StatefulSet")["spec"]["persistentVolumeClaimRetentionPolicy"]
    assert kept == {"whenDeleted": "Retain", "whenScaled": "Retain"}


def test_a_pod_keeps_the_restricted_pod_security_standard(objects: Objects) -> None:
    user = {"runAsNonRoot": True, "runAsUser": 10001, "runAsGroup": 10001}
    volume = {"fsGroup": 10001, "fsGroupChangePolicy": "OnRootMismatch"}
    seccomp = {"seccompProfile": {"type": "RuntimeDefault"}}
    assert objects.pod["securityContext"] == user | volume | seccomp
    assert not objects.pod.keys() & {"hostNetwork", "hostPID", "hostIPC", "ephemeralContainers"}
    for volume in objects.pod["volumes"]:
        assert volume.keys() - {"name"} <= {"configMap", "secret", "emptyDir"}
    for container in objects.containers:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert not [port for port in container.get("ports", []) if "hostPort" in port]
        handlers = [each for name, each in container.items() if name.endswith("Probe")]
        handlers += container.get("lifecycle", {}).values()
        assert not [each for each in handlers if "host" in each.get("httpGet", {})]
        assert not [each for each in handlers if "tcpSocket" in each]


def test_one_relay_runs_with_a_volume_for_a_single_pod(on_a_volume: Objects) -> None:
    spec = on_a_volume.one("StatefulSet")["spec"]
    assert spec["replicas"] == 1
    (claim,) = spec["volumeClaimTemplates"]
    assert claim["spec"]["accessModes"] == ["ReadWriteOncePod"]


def test_every_selector_matches_the_pods_labels(objects: Objects) -> None:
    labels = objects.template["metadata"]["labels"].items()
    selectors = [
        objects.workload["spec"]["selector"]["matchLabels"],
        objects.one("NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
        objects.one("PodMonitor")["spec"]["selector"]["matchLabels"],
        *(service["spec"]["selector"] for service in objects.of("Service")),
    ]
    for each in selectors:
        assert each
        assert each.items() <= labels
    assert objects.one("PodMonitor")["spec"]["jobLabel"] in dict(labels)
    assert dict(labels)[objects.one("PodMonitor")["spec"]["jobLabel"]] == "relay"


def test_two_relays_of_one_name_in_two_namespaces_are_two_instances(objects: Objects) -> None:
    (endpoint,) = objects.one("PodMonitor")["spec"]["podMetricsEndpoints"]
    (instance,) = [each for each in endpoint["relabelings"] if each["targetLabel"] == "instance"]
    assert instance["sourceLabels"] == ["__meta_kubernetes_namespace", "__meta_kubernetes_pod_name"]
    assert instance["separator"] == "/"


def test_the_headless_service_of_the_statefulset_exists(on_a_volume: Objects) -> None:
    name = on_a_volume.one("StatefulSet")["spec"]["serviceName"]
    headless = on_a_volume.one("Service", name)
    assert headless["spec"]["clusterIP"] == "None"


def test_every_named_port_is_a_listener_of_the_config(objects: Objects) -> None:
    listen, admin = (
        int(config(objects)["server"][key].rpartition(":")[2]) for key in ("listen", "admin_listen")
    )
    ports = {each["name"]: each["containerPort"] for each in objects.relay["ports"]}
    assert ports == {"http": listen, "admin": admin}
    for service in objects.of("Service"):
        assert [each["targetPort"] for each in service["spec"]["ports"]] == [listen]
    proxy, prometheus = objects.one("NetworkPolicy")["spec"]["ingress"]
    assert [each["port"] for each in proxy["ports"]] == [listen]
    assert [each["port"] for each in prometheus["ports"]] == [admin]
    (endpoint,) = objects.one("PodMonitor")["spec"]["podMetricsEndpoints"]
    assert ports[endpoint["port"]] == admin
    assert {probe["httpGet"]["port"] for probe in probes(objects)} == {"admin"}


def probes(objects: Objects) -> Iterator[Object]:
    return (each for name, each in objects.relay.items() if name.endswith("Probe"))


def test_only_the_public_port_has_a_service(objects: Objects) -> None:
    public = [each for each in objects.of("Service") if each["spec"].get("clusterIP") != "None"]
    assert [each["metadata"]["name"] for each in public] == ["relay"]


def test_every_volume_is_mounted_and_every_mount_has_its_volume(objects: Objects) -> None:
    claims = objects.workload["spec"].get("volumeClaimTemplates", [])
    volumes = {each["name"] for each in (*objects.pod["volumes"], *_metadata(claims))}
    mounts = [mount for each in objects.containers for mount in each["volumeMounts"]]
    assert {each["name"] for each in mounts} == volumes
    maps = {each["metadata"]["name"] for each in objects.of("ConfigMap")}
    used = {
        volume["configMap"]["name"] for volume in objects.pod["volumes"] if "configMap" in volume
    }
    assert used == maps


def _metadata(claims: list[Object]) -> list[Object]:
    return [each["metadata"] for each in claims]


def test_config_and_secrets_are_mounted_as_whole_directories(objects: Objects) -> None:
    for each in objects.containers:
        for mount in each["volumeMounts"]:
            assert not mount.keys() & {"subPath", "subPathExpr"}
    for volume in objects.pod["volumes"]:
        source = volume.get("configMap") or volume.get("secret") or {}
        assert "items" not in source


def mount_path(objects: Objects, volume: str) -> str:
    (path,) = (
        each["mountPath"] for each in objects.relay["volumeMounts"] if each["name"] == volume
    )
    return str(path)


def secret_files(objects: Objects) -> set[str]:
    """The names of all files that the config refers to, which all are among the secrets."""
    paths = re.findall(r'"file:(.+?)"', objects.config)
    folders = {path.rpartition("/")[0] for path in paths}
    assert folders == {mount_path(objects, "secrets")}
    return {path.rpartition("/")[2] for path in paths}


def test_the_example_secret_has_the_keys_that_the_config_reads() -> None:
    example = yaml.safe_load((FOLDER / "secret.example.yaml").read_text(encoding="utf-8"))
    (volume,) = (each for each in built(BASE).pod["volumes"] if each["name"] == "secrets")
    assert volume["secret"]["secretName"] == example["metadata"]["name"]
    assert example["metadata"]["namespace"] == built(BASE).workload["metadata"]["namespace"]
    read = {name: secret_files(built(folder)) for name, folder in OVERLAYS.items()}
    assert set(example["stringData"]) == set().union(*read.values())
    assert read["postgres"] - read["base"] == {"database-url"}


def test_only_the_pods_group_reads_its_secrets(objects: Objects) -> None:
    (volume,) = (each for each in objects.pod["volumes"] if each["name"] == "secrets")
    assert volume["secret"]["defaultMode"] == 0o440


def test_user_and_config_path_match_the_image(objects: Objects) -> None:
    user, group = re.findall(r"^USER (\d+):(\d+)$", DOCKERFILE, re.MULTILINE)[-1]
    context = objects.pod["securityContext"]
    assert (context["runAsUser"], context["runAsGroup"]) == (int(user), int(group))
    (path,) = re.findall(r"\bRELAY_CONFIG=(\S+)", DOCKERFILE)
    assert path == f"{mount_path(objects, 'config')}/config.toml"
    # The image's own command, whose process 1 is the relay.
    assert not objects.relay.keys() & {"command", "args", "env"}


def test_the_store_is_on_the_volume_that_the_image_names(on_a_volume: Objects) -> None:
    (volume,) = re.findall(r"^VOLUME (\S+)$", DOCKERFILE, re.MULTILINE)
    assert volume == mount_path(on_a_volume, "data")
    assert config(on_a_volume)["store"]["path"].rpartition("/")[0] == volume


def test_the_relay_has_time_to_drain(objects: Objects) -> None:
    drain = Duration.parse(config(objects)["server"]["drain_timeout"])
    pause_s = objects.relay["lifecycle"]["preStop"]["sleep"]["seconds"]
    # A sidecar ends after the application, and out of the same time.
    applications = [each for each in objects.pod["containers"] if each["name"] != "relay"]
    needed_s = pause_s + drain.seconds + ADMIN_GRACE.seconds + APPLICATION_S * len(applications)
    assert objects.pod["terminationGracePeriodSeconds"] >= needed_s + 5


def test_probes_wait_longer_than_the_relays_own_checks(objects: Objects) -> None:
    assert objects.relay["readinessProbe"]["timeoutSeconds"] > PROBE_TIMEOUT_S
    live = objects.relay["livenessProbe"]
    assert live["periodSeconds"] * live["failureThreshold"] >= 60


def test_liveness_does_not_depend_on_the_store(objects: Objects) -> None:
    paths = {
        name: each["httpGet"]["path"]
        for name, each in objects.relay.items()
        if name.endswith("Probe")
    }
    assert paths == {
        "startupProbe": "/healthz",
        "livenessProbe": "/healthz",
        "readinessProbe": "/readyz",
    }


def test_the_volume_is_five_times_the_reserved_space(on_a_volume: Objects) -> None:
    (claim,) = on_a_volume.one("StatefulSet")["spec"]["volumeClaimTemplates"]
    size = claim["spec"]["resources"]["requests"]["storage"]
    assert size.endswith("Gi")
    kept = Size.parse(config(on_a_volume)["store"]["min_free"])
    assert kept * 5 < int(size.removesuffix("Gi")) * GIBIBYTE


def test_the_sidecar_differs_from_the_base_only_in_its_restart_policy() -> None:
    (sidecar,) = built(SIDECAR).pod["initContainers"]
    assert sidecar == built(BASE).relay | {"restartPolicy": "Always"}
    assert [each["name"] for each in built(SIDECAR).pod["containers"]] == ["application"]


def test_the_sidecar_is_reachable_while_its_application_is_not_ready() -> None:
    assert built(SIDECAR).one("Service")["spec"]["publishNotReadyAddresses"] is True


def test_egress_allows_only_dns_the_sinks_and_the_store() -> None:
    out = {
        name: [
            sorted({each["port"] for each in rule["ports"]})
            for rule in built(folder).one("NetworkPolicy")["spec"]["egress"]
        ]
        for name, folder in OVERLAYS.items()
    }
    assert out == {"base": [[53], [443]], "sidecar": [[53]], "postgres": [[53], [443], [5432]]}
    for folder in OVERLAYS.values():
        policy = built(folder).one("NetworkPolicy")["spec"]
        assert policy["policyTypes"] == ["Ingress", "Egress"]


def test_the_clusters_rules_are_those_of_rules_yml() -> None:
    rules = SOURCE.read_text(encoding="utf-8")
    assert TARGET.read_text(encoding="utf-8") == manifest(rules)
    assert built(BASE).one("PrometheusRule")["spec"] == yaml.safe_load(rules)
