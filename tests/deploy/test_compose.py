"""deploy/compose: its files exist and agree, and its services are restricted."""

import re
import shutil
import stat
import subprocess
import tomllib
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
import yaml

from relay.core.config_values import Duration
from tests.deploy import compose
from tests.deploy.compose import FOLDER
from tests.deploy.image import ROOT, Debian, Image

Document = dict[str, Any]

OWNER = 10001
SERVICES = ("relay", "postgres", "nginx", "prometheus", "alertmanager", "grafana")
DEPLOYMENT = (ROOT / "docs/deployment.md").read_text(encoding="utf-8")
CONFIG: Document = tomllib.loads((FOLDER / "relay/config.toml").read_text(encoding="utf-8"))


def port(listener: str) -> str:
    return listener.rpartition(":")[2]


def test_compose_accepts_the_file_with_its_services(document: Document) -> None:
    assert set(document["services"]) == set(SERVICES)


def test_every_mount_from_here_exists_and_is_read_only(document: Document) -> None:
    for name, service in document["services"].items():
        mounts = [volume for volume in service["volumes"] if volume["type"] == "bind"]
        assert mounts, name
        for mount in mounts:
            assert Path(mount["source"]).exists(), f"{name}: {mount['source']}"
            assert mount["read_only"], f"{name}: {mount['target']}"


def test_every_image_is_pinned_by_its_digest_or_built_here(document: Document) -> None:
    for name, service in document["services"].items():
        if "build" in service:
            assert (name, service["pull_policy"]) == ("relay", "build")
            assert service["build"]["args"].keys() == {"EXTRAS", "REVISION"}
        else:
            assert re.search(r":v?\d+(\.\d+)+(-\w+)?@sha256:[0-9a-f]{64}$", service["image"])


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_has_no_privileges_bounded_resources_and_a_health_check(
    document: Document, name: str
) -> None:
    service = document["services"][name]
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert ("cap_add" in service) == (name == "nginx")
    assert service["logging"]["options"]["max-size"]
    assert int(service["mem_limit"]) >= 128 << 20
    assert service["pids_limit"] == 256
    assert service["healthcheck"]["test"][0] in {"CMD", "CMD-SHELL"}


def test_alerts_reach_slack_through_a_valid_alertmanager_config(document: Document) -> None:
    given = compose.files(document, "alertmanager", FOLDER)
    config = given["/etc/alertmanager"] / "alertmanager.yml"
    if shutil.which("amtool") is None:
        pytest.skip("amtool is not installed")
    done = subprocess.run(
        ["amtool", "check-config", config], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (slack,) = yaml.safe_load(config.read_text())["receivers"][0]["slack_configs"]
    assert slack["api_url_file"] in given
    told = compose.files(document, "prometheus", FOLDER)["/etc/prometheus"] / "prometheus.yml"
    (manager,) = yaml.safe_load(told.read_text())["alerting"]["alertmanagers"]
    assert manager["static_configs"] == [{"targets": ["alertmanager:9093"]}]


def test_only_nginx_is_reachable_from_other_hosts(document: Document) -> None:
    published = {
        (name, each["published"], each.get("host_ip"))
        for name, service in document["services"].items()
        for each in service.get("ports", [])
    }
    assert published == {
        ("nginx", "443", None),
        ("relay", "9464", "127.0.0.1"),
        ("prometheus", "9090", "127.0.0.1"),
        ("alertmanager", "9093", "127.0.0.1"),
        ("grafana", "3000", "127.0.0.1"),
    }


def test_nginx_and_prometheus_share_no_network(document: Document) -> None:
    assert set(document["services"]["nginx"]["networks"]) == {"front"}
    assert set(document["services"]["prometheus"]["networks"]) == {"watch"}


def test_addresses_and_ports_agree(document: Document) -> None:
    assert CONFIG["server"]["trusted_proxies"] == [compose.address(document, "nginx")]
    network = ip_network(document["networks"]["front"]["ipam"]["config"][0]["subnet"])
    hosts = [*map(str, network.hosts())][1:]  # Docker takes the first one
    assert {compose.address(document, name) for name in ("relay", "nginx")} <= set(hosts)


def test_the_upstream_of_nginx_differs_from_deploy_proxy_only_in_its_address(
    document: Document,
) -> None:
    here, elsewhere = (
        [line.strip() for line in (folder / "upstream.conf").read_text().splitlines()]
        for folder in (FOLDER / "nginx", ROOT / "deploy/proxy/nginx/relay")
    )
    relay = f"{compose.address(document, 'relay')}:{port(CONFIG['server']['listen'])}"
    assert [line for line in here if line and not line.startswith("#")] == [
        line.replace("127.0.0.1:8080", relay)
        for line in elsewhere
        if line and not line.startswith("#")
    ]


def test_nginx_serves_the_path_of_every_source(document: Document) -> None:
    given = compose.files(document, "nginx", FOLDER)
    public = (given["/etc/nginx/relay"] / "sources.conf").read_text(encoding="utf-8")
    for source in CONFIG["source"]:
        for path in (source["path"], f"{source['path']}/"):
            assert f"location = {path} {{" in public


def test_prometheus_scrapes_the_admin_listener_by_the_services_name(document: Document) -> None:
    given = compose.files(document, "prometheus", FOLDER)
    scraped = yaml.safe_load((given["/etc/prometheus"] / "prometheus.yml").read_text())
    (job,) = scraped["scrape_configs"]
    assert job["static_configs"] == [
        {"targets": [f"relay:{port(CONFIG['server']['admin_listen'])}"]}
    ]
    for rules in scraped["rule_files"]:
        assert (given["/etc/prometheus"] / rules).exists()


def test_grafana_finds_prometheus_and_the_dashboards(document: Document) -> None:
    given = compose.files(document, "grafana", FOLDER)
    provisioning = given["/etc/grafana/provisioning"]
    (source,) = yaml.safe_load((provisioning / "datasources/prometheus.yml").read_text())[
        "datasources"
    ]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((provisioning / "dashboards/relay.yml").read_text())["providers"]
    dashboards = given[provider["options"]["path"]]
    home = Path(
        document["services"]["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    )
    assert home.parent == Path(provider["options"]["path"])
    assert (dashboards / home.name).exists()


def test_every_secret_is_used_and_ignored_by_git(document: Document) -> None:
    used = {
        secret["source"]
        for service in document["services"].values()
        for secret in service.get("secrets", [])
    }
    assert used == set(document["secrets"])
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    for secret in document["secrets"].values():
        assert f"/{Path(secret['file']).parent.relative_to(ROOT)}/" in ignored


def follow(folder: Path, steps: list[str]) -> None:
    """Type the steps in a copy of deploy/compose, which is made if it is not there."""
    place = folder / "deploy/compose"
    if not place.exists():
        shutil.copytree(FOLDER, place, ignore=shutil.ignore_patterns("secrets", ".env"))
    for step in steps:
        ran = subprocess.run(
            ["sh", "-euc", f"umask 022; {step}"], cwd=place, input=b"typed\n", check=False
        )
        assert ran.returncode == 0, step


def test_the_documented_commands_create_every_secret_in_a_private_folder(
    debian: Debian, tmp_path: Path
) -> None:
    certificates = tmp_path / "letsencrypt/live/hooks.example.com"
    certificates.mkdir(parents=True)
    for name in ("fullchain.pem", "privkey.pem"):
        (certificates / name).write_text(name, encoding="utf-8")
        (certificates / name).chmod(0o600)
    (block,) = re.findall(r"```sh\ncd deploy/compose\n(.*?)```", DEPLOYMENT, re.DOTALL)
    steps = block.replace("/etc/letsencrypt", str(tmp_path / "letsencrypt")).splitlines()
    own, docker = steps[:-3], steps[-3:]
    follow(tmp_path, own)
    made = tmp_path / "deploy/compose/secrets"
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    secrets = compose.read(debian.compose)["secrets"]
    assert {path.name for path in made.iterdir()} == {
        Path(secret["file"]).name for secret in secrets.values()
    }
    for path in made.iterdir():
        assert path.stat().st_size
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert [line.split()[:2] for line in docker] == [["docker", "compose"]] * 3
    assert [line.split()[4:] for line in docker[1:]] == [
        *(["relay", "check-config", "--connect"], ["relay", "status"]),
    ]


def test_the_documented_commands_add_a_database(debian: Debian, tmp_path: Path) -> None:
    follow(tmp_path, ["mkdir -m 700 secrets"])
    assert "postgres" not in compose.read(debian.compose, tmp_path / "deploy/compose")["services"]
    (block,) = re.findall(r"```sh\n(openssl rand [^\n]*database-.*?)```", DEPLOYMENT, re.DOTALL)
    *own, up = block.splitlines()
    assert up == "docker compose up --detach --wait"
    follow(tmp_path, own)
    made = tmp_path / "deploy/compose"
    services = compose.read(debian.compose, made)["services"]
    assert services["postgres"]["secrets"] == [
        {"source": "database-password", "target": "/run/secrets/database-password"}
    ]
    password = (made / "secrets/database-password").read_text(encoding="utf-8").strip()
    assert stat.S_IMODE((made / "secrets/database-password").stat().st_mode) == 0o644
    assert services["relay"]["environment"] == {
        "DATABASE_URL": f"postgresql://relay:{password}@postgres/relay"
    }
    assert services["relay"]["build"]["args"]["EXTRAS"] == "all"
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert "/deploy/compose/.env" in ignored


def test_only_the_relay_reaches_the_database(document: Document) -> None:
    assert document["networks"]["database"]["internal"]
    assert set(document["services"]["postgres"]["networks"]) == {"database"}
    inside = [
        name
        for name, service in document["services"].items()
        if "database" in service["networks"] and name != "postgres"
    ]
    assert inside == ["relay"]


def test_the_relay_has_time_to_drain(document: Document) -> None:
    service = document["services"]["relay"]
    drain_s = Duration.parse(CONFIG["server"]["drain_timeout"]) / 1000
    assert compose.seconds(service["stop_grace_period"]) >= 2 * drain_s


def test_the_health_check_is_the_images(document: Document, image: Image) -> None:
    check = document["services"]["relay"]["healthcheck"]
    own = image.config["Healthcheck"]
    assert check["test"] == own["Test"]
    for key, name in (("interval", "Interval"), ("timeout", "Timeout")):
        assert compose.seconds(check[key]) == own[name] / 1_000_000_000
