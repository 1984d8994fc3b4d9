"""The database of deploy/compose, on a server of this machine."""

import asyncio
import subprocess
import tomllib
from pathlib import Path

import pytest

from relay import config
from tests.deploy.compose import FOLDER
from tests.deploy.test_postgres_docs import block
from tests.guarantees.process import Relay
from tests.postgres.server import PostgresServer

pytestmark = pytest.mark.servers

PASSWORD = "0123456789abcdef" * 4
STORE = block("toml").removeprefix("[store]\n")


def initialise(server: PostgresServer, folder: Path) -> None:
    """Do what the container does at its first start."""
    server.execute(f"ALTER ROLE postgres PASSWORD '{PASSWORD}'")
    server.execute("CREATE DATABASE relay")
    secret = folder / "database-password"
    secret.write_text(f"{PASSWORD}\n", encoding="utf-8")
    text = (FOLDER / "postgres/role.sql").read_text(encoding="utf-8")
    file = folder / "role.sql"
    file.write_text(text.replace("/run/secrets/database-password", str(secret)), encoding="utf-8")
    psql = [str(server.programs / "psql"), "--set", "ON_ERROR_STOP=1", "--no-psqlrc"]
    address = server.dsn.replace("dbname=postgres", "dbname=relay")
    subprocess.run([*psql, "--file", str(file), address], check=True, capture_output=True)


async def test_a_relay_starts_with_the_role_of_the_first_start(
    tmp_path: Path, server: PostgresServer
) -> None:
    await asyncio.to_thread(initialise, server, tmp_path)
    url = f"postgresql://relay:{PASSWORD}@127.0.0.1:{server.port}/relay"
    async with Relay(tmp_path, sinks="", store=STORE, environ={"DATABASE_URL": url}) as relay:
        await relay.start()
        assert await relay.stop() == 0, relay.output()


def test_the_relays_password_opens_no_administrators_account(
    tmp_path: Path, server: PostgresServer
) -> None:
    initialise(server, tmp_path)
    rights = "rolsuper OR rolcreaterole OR rolcreatedb, rolpassword IS NULL"
    found = f"SELECT rolname, {rights} FROM pg_authid WHERE rolcanlogin ORDER BY rolname"
    assert server.execute(found) == [("postgres", True, True), ("relay", False, False)]


def test_the_config_takes_the_documented_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://relay@postgres/relay")
    text = (FOLDER / "relay/config.toml").read_text(encoding="utf-8")
    path = tomllib.loads(text)["store"]["path"]
    file = tmp_path / "config.toml"
    text = text.replace(f'path = "{path}"\n', STORE).replace(
        "file:/run/secrets/", f"file:{tmp_path}/"
    )
    for name, value in (
        ("admin-token", "an-admin-token-of-the-tests"),
        ("slack-url", "https://127.0.0.1:9/services/T/B/x"),
        ("source-main", "a-secret-of-sixteen-bytes"),
    ):
        (tmp_path / name).write_text(value, encoding="utf-8")
    file.write_text(text, encoding="utf-8")
    assert config.load(file).store.type == "postgres"
