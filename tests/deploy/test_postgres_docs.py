"""The steps of docs/deployment.md for PostgreSQL, followed word by word."""

import asyncio
import re
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from relay.cli import main
from tests.deploy.units import ROOT
from tests.guarantees.process import Relay
from tests.postgres.server import PostgresServer

pytestmark = pytest.mark.servers

SECTION = (ROOT / "docs" / "deployment.md").read_text().partition("\n## PostgreSQL\n")[2]
SECTION = SECTION.partition("\n## ")[0]


def block(language: str) -> str:
    """Return the section's first block in a language, without its indent."""
    found = re.search(rf"^( *)```{language}\n(.*?)^ *```$", SECTION, re.DOTALL | re.MULTILINE)
    assert found is not None
    return re.sub(f"(?m)^{found[1]}", "", found[2])


def run_sql(server: PostgresServer, text: str) -> None:
    command = [str(server.programs / "psql"), "--set", "ON_ERROR_STOP=1", "--no-psqlrc", server.dsn]
    subprocess.run(command, input=text.encode(), check=True, capture_output=True)


async def test_a_relay_starts_after_the_steps(tmp_path: Path, server: PostgresServer) -> None:
    await asyncio.to_thread(run_sql, server, block("sql"))
    dsn = f"host=127.0.0.1 port={server.port} dbname=relay user=relay"
    environ = {"DATABASE_URL": f"{dsn} password='a long random password'"}
    relay = Relay(
        tmp_path, sinks="", store=block("toml").removeprefix("[store]\n"), environ=environ
    )
    command = ["check-config", "--config", str(relay.config), "--connect"]
    result = await asyncio.to_thread(CliRunner().invoke, main, command, env=environ)
    assert result.exit_code == 0, result.output
    assert "; serve creates the schema relay" in result.output
    async with relay:
        await relay.start()
        assert await relay.stop() == 0, relay.output()
    result = await asyncio.to_thread(CliRunner().invoke, main, command, env=environ)
    assert "; the schema relay is up to date" in result.output
