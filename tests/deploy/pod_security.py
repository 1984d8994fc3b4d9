"""The Pod Security Standard "restricted", as far as a Linux pod's template can break it.

https://kubernetes.io/docs/concepts/security/pod-security-standards/
"""

from collections.abc import Callable, Iterator
from typing import Any

Pod = dict[str, Any]
Container = dict[str, Any]

VOLUMES = {
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral"),
    *("persistentVolumeClaim", "projected", "secret"),
}


def broken(pod: Pod) -> list[str]:
    """The rules that a pod's spec does not keep, each with the container that breaks it."""
    found = [name for name, rule in _POD if not rule(pod)]
    for container in containers(pod):
        where = container["name"]
        found += [f"{where}: {name}" for name, rule in _CONTAINER if not rule(container, pod)]
    return found


def containers(pod: Pod) -> Iterator[Container]:
    """All of them, of every sort."""
    for sort in ("initContainers", "containers", "ephemeralContainers"):
        yield from pod.get(sort, [])


def _said(container: Container, pod: Pod, name: str) -> Any:
    """What holds for a container: its own word, or else the pod's."""
    own = container.get("securityContext", {})
    return own.get(name, pod.get("securityContext", {}).get(name))


def _own(container: Container) -> dict[str, Any]:
    context: dict[str, Any] = container.get("securityContext", {})
    return context


def _seccomp(container: Container, pod: Pod) -> bool:
    profile = _said(container, pod, "seccompProfile") or {}
    return profile.get("type") in {"RuntimeDefault", "Localhost"}


def _capabilities(container: Container) -> bool:
    said = _own(container).get("capabilities", {})
    return "ALL" in said.get("drop", []) and set(said.get("add", [])) <= {"NET_BIND_SERVICE"}


def _handlers(container: Container) -> Iterator[dict[str, Any]]:
    yield from (container[name] for name in container if name.endswith("Probe"))
    yield from container.get("lifecycle", {}).values()


_POD: tuple[tuple[str, Callable[[Pod], bool]], ...] = (
    *(
        (f"{name} is not used", lambda pod, name=name: not pod.get(name))
        for name in ("hostNetwork", "hostPID", "hostIPC")
    ),
    (
        "only harmless types of volumes",
        lambda pod: all({*volume} - {"name"} <= VOLUMES for volume in pod.get("volumes", [])),
    ),
    ("no sysctls", lambda pod: not pod.get("securityContext", {}).get("sysctls")),
)

_CONTAINER: tuple[tuple[str, Callable[[Container, Pod], bool]], ...] = (
    ("runAsNonRoot", lambda container, pod: _said(container, pod, "runAsNonRoot") is True),
    ("runAsUser is not 0", lambda container, pod: _said(container, pod, "runAsUser") != 0),
    ("a seccomp profile", _seccomp),
    ("capabilities are dropped", lambda container, _: _capabilities(container)),
    (
        "no escalation of privileges",
        lambda container, _: _own(container).get("allowPrivilegeEscalation") is False,
    ),
    ("is not privileged", lambda container, _: not _own(container).get("privileged")),
    (
        "the default of /proc",
        lambda container, _: _own(container).get("procMount", "Default") == "Default",
    ),
    ("no SELinux options", lambda container, pod: not _said(container, pod, "seLinuxOptions")),
    (
        "the default of AppArmor",
        lambda container, pod: (
            (_said(container, pod, "appArmorProfile") or {}).get("type") != "Unconfined"
        ),
    ),
    (
        "no port of the host",
        lambda container, _: not any(port.get("hostPort") for port in container.get("ports", [])),
    ),
    (
        "no probe or hook names a host",
        lambda container, _: (
            not any(
                action.get("host")
                for handler in _handlers(container)
                for action in handler.values()
                if isinstance(action, dict)
            )
        ),
    ),
)
