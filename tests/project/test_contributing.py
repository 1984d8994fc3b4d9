"""CONTRIBUTING.md names every file that an addition touches, counted on existing ones."""

import re
from pathlib import Path

import pytest
import yaml

from relay import sinks
from relay.cli import Commands
from tests.project.test_project import PROJECT, ROOT
from tests.telemetry.test_metrics import CONTRACT

TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
SINKS = sorted(sinks.names())
CODE = {file: file.read_text(encoding="utf-8") for file in (ROOT / "relay").rglob("*.py")}


def section(heading: str) -> str:
    return TEXT.partition(f"## {heading}\n")[2].partition("\n## ")[0]


def places(word: str) -> set[str]:
    """The modules of `relay` with the word as a string of its own."""
    pattern = re.compile(rf"""["']{re.escape(word)}["']""")
    return {str(file.relative_to(ROOT)) for file, text in CODE.items() if pattern.search(text)}


# "http" is a scheme of URLs as well, and the demo writes the type "stdout" into its config.
@pytest.mark.parametrize("name", sorted({*SINKS} - {"http", "stdout"}))
def test_nothing_outside_its_folder_names_a_sinks_type(name: str) -> None:
    assert [each for each in places(name) if not each.startswith(f"relay/sinks/{name}/")] == []


@pytest.mark.parametrize("name", SINKS)
def test_a_sink_is_in_every_file_that_the_page_lists(name: str) -> None:
    for file in (
        *("config.example.toml", "docs/configuration.md", "docs/sinks.md", "CHANGELOG.md"),
        "tests/config/test_sinks.py",
    ):
        assert f"`{file}`" in section("Add a sink")
        assert re.search(rf"\b{name}\b", (ROOT / file).read_text(encoding="utf-8"))
    assert (ROOT / "tests" / "sinks" / name).is_dir()
    assert (ROOT / "relay" / "sinks" / name / "sink.py").is_file()


@pytest.mark.parametrize("name", sorted(CONTRACT))
def test_a_metric_is_declared_in_one_module_and_documented(name: str) -> None:
    (module,) = places(name)
    assert Path(module).parent == Path("relay/telemetry/metrics")
    assert f"`{name}`" in (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")


def test_a_command_is_one_module_and_one_line() -> None:
    registry = (ROOT / "relay" / "cli" / "__init__.py").read_text(encoding="utf-8")
    for name in Commands().list_commands(None):  # type: ignore[arg-type]
        assert len(re.findall(rf'^    "{name}": \("', registry, re.MULTILINE)) == 1


def test_every_path_on_the_page_exists() -> None:
    paths = re.findall(r"`([\w./-]+/[\w./-]*)`", TEXT)
    assert paths
    assert [path for path in paths if "NAME" not in path and not (ROOT / path).exists()] == []


def test_pre_commit_and_the_forge_run_what_ci_runs() -> None:
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    entries = [hook["entry"] for repo in hooks["repos"] for hook in repo["hooks"]]
    assert [entry for entry in entries if f"step {entry}" not in ci] == []
    jobs = yaml.safe_load((ROOT / ".github/workflows/checks.yml").read_text(encoding="utf-8"))
    job = jobs["jobs"]["checks"]
    assert job["steps"][-1]["run"].endswith(" .ci/run")
    oldest = PROJECT["project"]["requires-python"].removeprefix(">=")
    assert job["strategy"]["matrix"]["python"][0] == oldest
    assert Path(ROOT / ".ci" / "run").stat().st_mode & 0o100
