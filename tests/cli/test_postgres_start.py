"""`relay serve` and `relay check-config --connect` on a database: one line, and the exit code."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from relay.cli import main
from relay.store import engines
from tests.ports import free_port
from tests.postgres.guarded import PASSWORD, GuardedServer, guarded_server


@pytest.fixture(scope="module")
def guarded() -> GuardedServer:
    return guarded_server()


Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def run(dsn: str, *command: str, schema: str = "relay") -> Result:
        config = tmp_path / "config.toml"
        config.write_text(
            '[server]\nlisten = "127.0.0.1:0"\nadmin_listen = "127.0.0.1:0"\n'
            f'[store]\ntype = "postgres"\ndsn = "env:DATABASE_URL"\nschema = "{schema}"\n'
            '[[source]]\nname = "main"\npath = "/webhooks"\nsecrets = ["a-secret-of-sixteen"]\n',
            encoding="utf-8",
        )
        arguments = [*command, "--config", str(config)]
        return CliRunner().invoke(main, arguments, env={"DATABASE_URL": dsn})

    return run


STARTS: dict[str, tuple[Callable[[GuardedServer], str], int, str]] = {
    "a wrong password": (
        lambda guarded: guarded.dsn(password="wrong"),
        os.EX_CONFIG,
        "password authentication failed",
    ),
    "a missing right": (lambda guarded: guarded.dsn("guest"), os.EX_CONFIG, "CREATE SCHEMA"),
    "a certificate of another authority": (
        lambda guarded: guarded.dsn(sslmode="verify-full", sslrootcert=guarded.stranger),
        os.EX_CONFIG,
        "certificate verify failed",
    ),
    "a host that is away": (
        lambda guarded: guarded.dsn(port=free_port()),
        os.EX_TEMPFAIL,
        "Connection refused",
    ),
    "a server that only reads": (
        lambda guarded: guarded.dsn(options="'-c default_transaction_read_only=on'"),
        os.EX_TEMPFAIL,
        "read-only",
    ),
}


@pytest.mark.parametrize(("dsn", "code", "text"), STARTS.values(), ids=STARTS)
def test_a_failed_start_is_one_line_and_an_exit_code(
    guarded: GuardedServer,
    run: Run,
    dsn: Callable[[GuardedServer], str],
    code: int,
    text: str,
) -> None:
    given = dsn(guarded)
    result = run(given, "serve")
    assert result.exit_code == code, result.output
    (line,) = [line for line in result.output.splitlines() if line.startswith("relay: ")]
    assert text in line
    assert PASSWORD not in result.output
    checked = run(given, "check-config", "--connect")
    assert checked.exit_code == 1
    assert f"  database   {line.removeprefix('relay: ')}" in checked.output.splitlines()


def test_the_check_of_a_connection_says_what_a_start_would_do(
    guarded: GuardedServer, run: Run
) -> None:
    result = run(guarded.dsn(), "check-config", "--connect", schema="later")
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[2] == (
        "  store      postgres at schema later of the database relay at 127.0.0.1"
    )
    assert "; serve creates the schema later" in result.output
    assert PASSWORD not in result.output


def test_the_connection_is_in_the_document_for_programs(guarded: GuardedServer, run: Run) -> None:
    result = run(guarded.dsn(password="wrong"), "check-config", "--connect", "--json")
    document = json.loads(result.stdout)
    assert document["ok"] is False
    assert document["database"]["ok"] is False
    assert "password authentication failed" in document["database"]["text"]


def test_without_connect_the_database_is_not_contacted(guarded: GuardedServer, run: Run) -> None:
    result = run(guarded.dsn(port=free_port()), "check-config")
    assert result.exit_code == 0, result.output
    assert "database " not in result.output.partition("store")[2].partition("\n")[2]


@pytest.mark.parametrize("command", ["serve", "check-config"])
def test_a_missing_client_is_a_fault_that_names_the_extra(
    guarded: GuardedServer, run: Run, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    def missing(_: str) -> None:
        raise ModuleNotFoundError(name="psycopg")

    monkeypatch.setattr(engines, "import_module", missing)
    result = run(guarded.dsn(), command)
    assert result.exit_code == (os.EX_CONFIG if command == "serve" else 1)
    needs = "store.type: type = \"postgres\" needs its client: pip install '.[postgres]'"
    assert needs in result.output
