"""The project's own rules: locks, layout, the commands of the README, the size of the documents."""

import os
import re
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from itertools import chain
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import relay
from relay import config

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())

CORE: list[str] = PROJECT["project"]["dependencies"]
EXTRAS: list[str] = [*chain(*PROJECT["project"]["optional-dependencies"].values())]
SQLITE: list[str] = PROJECT["project"]["optional-dependencies"]["sqlite"]
BUILD: list[str] = PROJECT["dependency-groups"]["build"]
INSTALL: list[str] = PROJECT["dependency-groups"]["install"]
TEST_PACKAGES: list[str] = PROJECT["dependency-groups"]["test"]
CHECK_PACKAGES: list[str] = PROJECT["dependency-groups"]["check"]

CLIENTS: list[str] = [
    *chain(
        *(
            wanted
            for extra, wanted in PROJECT["project"]["optional-dependencies"].items()
            if extra != "sqlite"  # it would change the SQLite that is tested
        )
    )
]

CAPPED = {
    "nats-py",
    *("aiosqlite", "uvicorn"),
}
"""Dependencies used by names that any release may change: test_internals.py."""

LOCKS = {
    ".ci/requirements.txt": CHECK_PACKAGES,
    "deploy/requirements.txt": CORE,
    "deploy/requirements-build.txt": BUILD,
    "deploy/requirements-extras.txt": CORE + EXTRAS,
    "deploy/requirements-sqlite.txt": CORE + SQLITE,
    "tests/requirements.txt": CORE + TEST_PACKAGES + CLIENTS,
    "deploy/requirements-uv.txt": INSTALL,
}

TOP_LEVEL = {
    *("pyproject.toml", "relay", "tests", "config.example.toml", "Dockerfile", "deploy"),
    *("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE"),
    *("docs", "benchmarks"),
}

DEMO = (
    "python3 -m venv .venv && .venv/bin/pip install -q --require-hashes -r deploy/requirements.txt"
    " && .venv/bin/pip install -q --no-deps . && .venv/bin/relay demo"
)
TEST = (
    "python3 -m venv .venv"
    " && .venv/bin/pip install -q --require-hashes -r deploy/requirements-uv.txt"
    " && .venv/bin/uv pip install -q -p .venv --require-hashes -r tests/requirements.txt"
    " && .venv/bin/uv pip install -q -p .venv --no-deps -e ."
    ' && .venv/bin/pytest -q -n auto -m "not long"'
)

_A_HOST = re.compile(
    r"//|@|\blocalhost\b|\b[a-z0-9-]+(\.[a-z0-9-]+)*\.(com|dev|io|net|org)\b", re.IGNORECASE
)


def lines(name: str) -> list[str]:
    return (ROOT / name).read_text().splitlines()


def pinned(lock: str) -> dict[str, str]:
    """Versions by name."""
    pins = [Requirement(line.rstrip(" \\")) for line in lines(lock) if re.match(r"\w", line)]
    return {canonicalize_name(pin.name): str(pin.specifier).removeprefix("==") for pin in pins}


@pytest.mark.parametrize(
    ("lock", "written"), [(lock, each) for lock, named in LOCKS.items() for each in named]
)
def test_each_dependency_is_locked_within_its_bounds(lock: str, written: str) -> None:
    wanted = Requirement(written)
    version = pinned(lock)[canonicalize_name(wanted.name)]
    assert wanted.specifier.contains(version)


@pytest.mark.parametrize(
    "written", CORE + EXTRAS + BUILD + INSTALL + TEST_PACKAGES + CHECK_PACKAGES
)
def test_each_dependency_has_a_lower_bound_and_an_upper_one_only_for_a_reason(
    written: str,
) -> None:
    wanted = Requirement(written)
    bounds = sorted(each.operator for each in wanted.specifier)
    assert bounds == (["<", ">="] if wanted.name in CAPPED else [">="])


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_holds_a_hash_for_everything(lock: str) -> None:
    text = (ROOT / lock).read_text()
    for entry in re.split(r"\n(?=\w)", text)[1:]:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), entry.partition("\n")[0]


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_names_no_host(lock: str) -> None:
    assert [line for line in lines(lock) if _A_HOST.search(line)] == []


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_says_how_to_make_it_anew(lock: str) -> None:
    command = lines(lock)[1]
    assert command.startswith("#    uv pip compile --universal --python-version 3.11 ")
    assert re.search(rf" pyproject\.toml(:build|:check|:install)? -o {re.escape(lock)}$", command)


def test_tests_run_on_the_versions_that_operators_get() -> None:
    tested = pinned("tests/requirements.txt")
    for lock in set(LOCKS) - {"tests/requirements.txt", "deploy/requirements-build.txt"}:
        others = {name: version for name, version in pinned(lock).items() if name in tested}
        assert others == {name: tested[name] for name in others}


def test_build_dependencies_are_locked() -> None:
    assert {Requirement(written).name for written in PROJECT["build-system"]["requires"]} <= {
        Requirement(written).name for written in BUILD
    }


def test_the_top_level_holds_nothing_that_has_no_place_there() -> None:
    ignored = [line.strip("/") for line in lines(".gitignore")]
    found = {entry.name for entry in ROOT.iterdir() if not entry.name.startswith(".")}
    strange = {name for name in found if not any(fnmatch(name, each) for each in ignored)}
    assert strange - TOP_LEVEL == set()


def test_the_first_screen_of_the_readme_has_the_two_commands() -> None:
    screen = [line.strip() for line in lines("README.md")[:30]]
    assert [line for line in screen if line.startswith("python3 -m venv ")] == [DEMO, TEST]


def test_ci_runs_the_readmes_commands_as_they_stand() -> None:
    finds = [line for line in lines(".ci/bare") if re.match("(demo|command)=", line)]
    script = "\n".join([*finds, 'printf "%s\n" "$demo" "$command"'])
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, check=True)
    assert done.stdout.decode().splitlines() == [DEMO, TEST]


def test_the_readmes_config_has_no_fault(tmp_path: Path) -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    path = tmp_path / "config.toml"
    path.write_text(dedent(block))
    environ = {
        "RELAY_SECRET": "the-signing-secret-of-step-2",
        "RELAY_ADMIN_TOKEN": "0f9a8b7c6d5e4f3a2b1c9d8e7f6a5b4c",
        "SLACK_URL": "https://slack.test/services/T/B/x",
        "CRM_URL": "https://crm.test/hook",
        "CRM_SIGNING": "whsec_bWFrZSBpdCB3aXRoIG9wZW5zc2wgcmFuZA==",
    }
    loaded = config.load(path, environ)
    assert [sink.name for sink in loaded.sinks] == ["sales", "crm"]
    assert (loaded.mistakes, loaded.warnings) == ((), ())


def test_the_architecture_has_1500_words_at_most() -> None:
    assert len((ROOT / "ARCHITECTURE.md").read_text().split()) <= 1500


def test_every_path_in_the_architecture_exists() -> None:
    paths = re.findall(r"`([\w-]+/[\w./-]*)`", (ROOT / "ARCHITECTURE.md").read_text())
    places = {path: (ROOT / path, ROOT / "relay" / path) for path in paths if "TYPE" not in path}
    assert places
    assert [path for path, files in places.items() if not any(map(Path.exists, files))] == []


def test_the_architecture_shows_the_rooms_in_the_rows_of_the_contract() -> None:
    cells = [line.split("|")[1:3] for line in lines("ARCHITECTURE.md") if re.match(r"\| \d ", line)]
    layers = PROJECT["tool"]["importlinter"]["contracts"][0]["layers"][1:]
    rooms = [(str(row), room) for row, layer in enumerate(layers, 1) for room in layer.split(" | ")]
    assert [(row.strip(), room.strip(" `")) for row, room in cells] == rooms


def test_the_changelog_begins_with_unreleased_changes_and_this_version() -> None:
    headings = [line for line in lines("CHANGELOG.md") if line.startswith("## ")]
    assert headings[0] == "## [Unreleased]"
    assert re.fullmatch(rf"## \[{re.escape(relay.__version__)}\] - \d{{4}}-\d\d-\d\d", headings[1])


@pytest.mark.parametrize(
    ("file", "tag"),
    [
        ("Dockerfile", r"ARG VERSION=(.+)"),
        ("deploy/compose/compose.yaml", r"image: relay:(.+)"),
        ("deploy/kubernetes/base/kustomization.yaml", r"newTag: (.+)"),
        ("docs/deployment.md", r"(?:\brelay:|newTag: )([\d.]+)"),
    ],
)
def test_an_image_has_the_version_of_the_project(file: str, tag: str) -> None:
    assert set(re.findall(tag, (ROOT / file).read_text())) == {relay.__version__}


@pytest.mark.parametrize(
    "document", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"]
)
def test_every_link_between_the_documents_leads_somewhere(document: str) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (ROOT / document).read_text())
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_rule_that_is_off_has_a_reason() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    rules = [line for line in text.splitlines() if re.match(r' +"[A-Z]+[0-9]*",', line)]
    assert rules
    assert [line for line in rules if not re.search(r", +# \w", line)] == []


@pytest.mark.servers
@pytest.mark.parametrize(
    ("required", "outcomes"),
    [("", {"1 failed", "2 skipped"}), ("1", {"2 failed", "1 skipped"})],
)
def test_only_a_marked_test_may_skip_undeclared_and_none_with_the_servers(
    tmp_path: Path, required: str, outcomes: set[str]
) -> None:
    reasons = {
        "def test_declared": "declared: it has no such thing",
        "@pytest.mark.servers\ndef test_marked": "no broker",
        "def test_unmarked": "no broker",
    }
    tests = (f"{head}():\n    pytest.skip({why!r})" for head, why in reasons.items())
    (tmp_path / "test_it.py").write_text("\n\n".join(["import pytest", *tests]))
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "tests.conftest",
            "-o",
            "markers=servers",
            "--rootdir",
            tmp_path,
            tmp_path,
        ],
        cwd=ROOT,
        env=os.environ | {"RELAY_REQUIRE_SERVERS": required, "PYTEST_ADDOPTS": ""},
        capture_output=True,
        timeout=60,
        check=False,
    )
    last = done.stdout.decode().splitlines()[-1]
    assert {each for each in re.findall(r"\d+ \w+", last) if not each.endswith("s")} == outcomes
