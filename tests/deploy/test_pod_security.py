"""Each rule of the restricted standard is seen to be broken where it is."""

from copy import deepcopy
from typing import Any

import pytest

from tests.deploy.cluster import BASE, built
from tests.deploy.pod_security import broken

OWN: dict[str, dict[str, Any]] = {
    "relay: no escalation of privileges": {"allowPrivilegeEscalation": None},
    "relay: capabilities are dropped": {"capabilities": {"drop": ["ALL"], "add": ["SYS_TIME"]}},
    "relay: is not privileged": {"privileged": True},
    "relay: the default of /proc": {"procMount": "Unmasked"},
    "relay: runAsUser is not 0": {"runAsUser": 0},
    "relay: runAsNonRoot": {"runAsNonRoot": False},
    "relay: a seccomp profile": {"seccompProfile": {"type": "Unconfined"}},
    "relay: no SELinux options": {"seLinuxOptions": {"type": "spc_t"}},
    "relay: the default of AppArmor": {"appArmorProfile": {"type": "Unconfined"}},
}
OTHERS: dict[str, tuple[tuple[str | int, ...], Any]] = {
    "hostNetwork is not used": (("hostNetwork",), True),
    "hostPID is not used": (("hostPID",), True),
    "hostIPC is not used": (("hostIPC",), True),
    "no sysctls": (("securityContext", "sysctls"), [{"name": "kernel.shm_rmid_forced"}]),
    "only harmless types of volumes": (("volumes", 0), {"name": "x", "hostPath": {"path": "/"}}),
    "relay: no port of the host": (("containers", 0, "ports", 0, "hostPort"), 80),
    "relay: no probe or hook names a host": (
        ("containers", 0, "livenessProbe", "httpGet", "host"),
        "169.254.169.254",
    ),
}


@pytest.mark.parametrize("rule", OWN)
def test_a_container_that_breaks_a_rule_is_found(rule: str) -> None:
    pod = deepcopy(built(BASE).pod)
    pod["containers"][0]["securityContext"] |= OWN[rule]
    assert broken(pod) == [rule]


@pytest.mark.parametrize("rule", OTHERS)
def test_a_pod_that_breaks_a_rule_is_found(rule: str) -> None:
    pod = deepcopy(built(BASE).pod)
    (*way, last), value = OTHERS[rule]
    place: Any = pod
    for step in way:
        place = place[step]
    place[last] = value
    assert broken(pod) == [rule]
