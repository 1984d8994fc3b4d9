"""Sink types are the folders of `relay/sinks`."""

from pathlib import Path

import pytest

from relay import sinks


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sinks, "__path__", [*sinks.__path__, str(tmp_path)])
    return tmp_path


def test_every_module_is_a_type(folder: Path) -> None:
    before = sinks.names()
    (folder / "pigeon.py").write_text("")
    assert sinks.names() == tuple(sorted((*before, "pigeon")))


def test_a_type_is_imported_by_its_name() -> None:
    assert sinks.load("stdout").__name__ == "relay.sinks.stdout"  # type: ignore[attr-defined]


@pytest.mark.parametrize("type_", ["pigeon", "", "http.client", "..http", "__init__"])
def test_an_unknown_type_lists_the_known_ones(type_: str) -> None:
    with pytest.raises(ValueError, match=r"[tT]here are: .*http.*stdout"):
        sinks.load(type_)


def test_a_missing_client_says_what_to_install(folder: Path) -> None:
    (folder / "pigeonpost.py").write_text("import no_such_client.channel\n")
    expected = "sink type `pigeonpost` needs its client: pip install '.\\[pigeonpost\\]'"
    with pytest.raises(ValueError, match=expected):
        sinks.load("pigeonpost")


def test_a_fault_of_our_own_is_not_blamed_on_a_client(folder: Path) -> None:
    (folder / "owl.py").write_text("import relay.no_such_module\n")
    with pytest.raises(ModuleNotFoundError):
        sinks.load("owl")
