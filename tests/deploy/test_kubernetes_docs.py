"""The documented steps for Kubernetes, run as far as possible without a cluster."""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from textwrap import dedent

from tests.deploy.kustomize import BASE, KUBECTL, POSTGRES, ROOT, Objects, build, built
from tests.deploy.test_kubernetes import secret_files
from tests.deploy.test_kubernetes_schemas import VERSIONS, validate

DOCUMENT = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
SECTION = re.split(r"^## ", DOCUMENT.partition("\n## Kubernetes\n")[2], flags=re.MULTILINE)[0]
FILES = {
    name: dedent(text)
    for _, name, text in re.findall(
        r"^( *)```yaml\n *# ([\w.]+)\n(.*?)^\1```$", SECTION, re.MULTILINE | re.DOTALL
    )
}


def commands(program: str) -> list[list[str]]:
    """Every command line of the section that starts a program, without its comment."""
    lines = re.findall(rf"^ *({program} .*)$", SECTION, re.MULTILINE)
    return [shlex.split(line, comments=True) for line in lines]


def overlaid(folder: Path) -> Objects:
    """The overlay of the documents, beside a copy of the base."""
    shutil.copytree(BASE, folder / "base")
    own = folder / "own"
    own.mkdir()
    for name, text in FILES.items():
        (own / name).write_text(text, encoding="utf-8")
    (own / "config.toml").write_text("# edited\n", encoding="utf-8")
    return build(own)


def test_the_documented_overlay_is_valid(tmp_path: Path) -> None:
    assert set(FILES) == {"kustomization.yaml", "ingress.yaml"}
    objects = overlaid(tmp_path)
    assert objects.config == "# edited\n"
    assert objects.relay["image"].startswith("registry.example/relay:")
    assert not {"PodMonitor", "PrometheusRule"} & {each["kind"] for each in objects}
    for each in objects:
        validate(each, VERSIONS[-1])


def test_the_documented_ingress_routes_the_sources_path_to_the_service(
    tmp_path: Path,
) -> None:
    objects = overlaid(tmp_path)
    (rule,) = objects.one("Ingress")["spec"]["rules"]
    (path,) = rule["http"]["paths"]
    assert (path["path"], path["pathType"]) == ("/webhooks", "Exact")
    service = objects.one("Service", path["backend"]["service"]["name"])
    ports = {each["name"] for each in service["spec"]["ports"]}
    assert path["backend"]["service"]["port"]["name"] in ports
    assert 'path = "/webhooks"' in built(BASE).config


def test_the_documented_secret_has_the_keys_that_the_config_reads(tmp_path: Path) -> None:
    written = set(re.findall(r"> secrets/([\w-]+)", SECTION))
    assert written == secret_files(built(POSTGRES))
    folder = tmp_path / "secrets"
    folder.mkdir()
    for name in written:
        (folder / name).write_text("x\n", encoding="utf-8")
    (command,) = (each for each in commands("kubectl") if "secret" in each)
    done = subprocess.run(
        [KUBECTL, *command[1:], "--dry-run=client", "--output=json"],
        cwd=tmp_path,
        capture_output=True,
        timeout=60,
        check=True,
    )
    made = json.loads(done.stdout)
    validate(made, VERSIONS[-1])
    (volume,) = (each for each in built(BASE).pod["volumes"] if "secret" in each)
    assert made["metadata"]["name"] == volume["secret"]["secretName"]
    assert made["metadata"]["namespace"] == built(BASE).one("StatefulSet")["metadata"]["namespace"]
    assert set(made["data"]) == written


def test_documented_commands_name_existing_objects() -> None:
    asked = [each[each.index("relay-0") :] for each in commands("kubectl") if "relay-0" in each]
    assert len(asked) == 5
    assert {each[2] for each in asked if "--" in each} == {"relay"}
    sets = {
        word for each in commands("kubectl") for word in each if word.startswith("statefulset/")
    }
    assert sets == {"statefulset/relay"}
    assert [each for each in commands("kubectl") if "apply" in each] == [
        ["kubectl", "apply", "-k", "."]
    ] * 2


def test_the_documented_claim_is_the_statefulsets() -> None:
    (claim,) = built(BASE).one("StatefulSet")["spec"]["volumeClaimTemplates"]
    assert f"`{claim['metadata']['name']}-relay-0`" in SECTION


def test_every_named_overlay_exists() -> None:
    for folder in re.findall(r"`(deploy/kubernetes/\w+(?:/\w+)?)`", SECTION):
        assert (ROOT / folder / "kustomization.yaml").is_file()
