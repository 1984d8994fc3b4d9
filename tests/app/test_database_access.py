"""A reload takes a new password, role or host of the database, and no other database."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from relay import config
from tests.app.cluster import DOCUMENT
from tests.app.reloading import body, ids
from tests.caller import post
from tests.operator import ADMIN, Operator, operating
from tests.postgres.guarded import PASSWORD, GuardedServer, guarded_server
from tests.postgres.pgbouncer import PgBouncer
from tests.service import ENVIRON, SINK, Relay, serving
from tests.stub_server import StubServer, until

pytestmark = pytest.mark.servers

NEW = "marked-other-password"
_numbers = count(1)


class Role:
    """A role with a schema of its own on the guarded server."""

    def __init__(self, guarded: GuardedServer) -> None:
        self.name = f"rotated{next(_numbers)}"
        self.guarded = guarded
        guarded.run(f"CREATE ROLE {self.name} LOGIN PASSWORD '{PASSWORD}'")
        guarded.run(f"CREATE SCHEMA {self.name} AUTHORIZATION {self.name}")

    def rotate(self) -> None:
        """Change the password, and end what was connected by the old one."""
        self.guarded.run(f"ALTER ROLE {self.name} PASSWORD '{NEW}'")
        self.disconnect()

    def disconnect(self) -> None:
        self.guarded.run(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{self.name}'"
        )

    def connections(self) -> int:
        text = f"SELECT count(*) FROM pg_stat_activity WHERE usename = '{self.name}'"
        ((number,),) = self.guarded.run(text)
        assert isinstance(number, int)
        return number

    def dsn(self, **changed: object) -> str:
        return self.guarded.dsn(self.name, **changed)


@dataclass
class Scene:
    folder: Path
    relay: Relay
    operator: Operator
    destination: StubServer

    def name(self, dsn: str) -> None:
        """Put a DSN where the config refers to, as a new version of a Secret is mounted."""
        _replace(self.folder / "dsn", dsn)

    async def send(self, event_id: str) -> int:
        return (await self.relay.ask(post(body(event_id)))).status

    async def delivers(self, event_id: str) -> None:
        assert await self.send(event_id) == 202
        await until(lambda: event_id in ids(self.destination), what=f"the event {event_id}")

    async def reload(self, status: int = 200) -> Any:
        answer = await self.operator.client.post("/-/reload")
        assert answer.status_code == status, answer.text
        assert PASSWORD not in answer.text
        assert NEW not in answer.text
        return answer.json()


def _replace(file: Path, text: str) -> None:
    new = file.with_suffix(".new")
    new.write_text(text)
    new.replace(file)


@asynccontextmanager
async def scene(folder: Path, schema: str, dsn: str) -> AsyncIterator[Scene]:
    _replace(folder / "dsn", dsn)
    async with StubServer() as destination:
        document = DOCUMENT.format(dsn=f"file:{folder}/dsn", schema=schema)
        sink = SINK.format(name="sales", url=destination.url("/"), more="")
        file = folder / "config.toml"
        file.write_text(f"{document}{ADMIN}{sink}", encoding="utf-8")
        async with serving(config.load(file, ENVIRON)) as relay, operating(relay) as operator:
            there = Scene(folder, relay, operator, destination)
            await there.delivers("first")
            yield there
            assert PASSWORD not in relay.log
            assert NEW not in relay.log


@pytest.fixture
def role() -> Role:
    return Role(guarded_server())


async def test_a_rotated_password_is_taken_while_nothing_can_connect_by_the_old_one(
    tmp_path: Path, role: Role
) -> None:
    async with scene(tmp_path, role.name, role.dsn()) as there:
        role.rotate()
        await until(lambda: role.connections() == 0, what="the end of the old connections")
        assert await there.send("second") == 503
        refused = [line["reason"] for line in there.relay.lines("store.unavailable")]
        assert any("password authentication failed for user" in reason for reason in refused)
        there.name(role.dsn(password=NEW))
        assert (await there.reload())["settings"] == ["store.dsn"]
        await there.delivers("second")
        assert role.connections() > 0


async def test_a_mounted_secret_is_taken_by_itself(tmp_path: Path, role: Role) -> None:
    async with scene(tmp_path, role.name, role.dsn()) as there:
        role.rotate()
        there.name(role.dsn(password=NEW))
        await until(lambda: bool(there.relay.lines("config.reloaded")), what="the reload")
        await there.delivers("second")


async def test_a_password_is_tried_before_it_is_taken_and_the_rest_of_the_reload_waits(
    tmp_path: Path, role: Role
) -> None:
    async with scene(tmp_path, role.name, role.dsn()) as there:
        there.name(role.dsn(password="wrong"))
        file = tmp_path / "config.toml"
        file.write_text(file.read_text() + SINK.format(name="bi", url="http://x.test", more=""))
        refusal = await there.reload(503)
        assert refusal["detail"] == (
            "the database refuses the relay: connection to server at "
            f'"127.0.0.1", port {role.guarded.server.port} failed: password authentication failed '
            f'for user "{role.name}"; see user and password in store.dsn'
        )
        assert there.relay.lines("config.refused")[-1]["message"] == refusal["detail"]
        assert set(there.relay.service.supervisor.statuses()) == {"sales"}
        role.disconnect()
        await there.delivers("second")


async def test_another_role_is_taken_if_it_may_use_the_schema(tmp_path: Path, role: Role) -> None:
    other = Role(role.guarded)
    async with scene(tmp_path, role.name, role.dsn()) as there:
        there.name(other.dsn())
        assert "may not use and fill the schema" in (await there.reload(503))["detail"]
        role.guarded.run(f"GRANT ALL ON SCHEMA {role.name} TO {other.name}")
        refusal = (await there.reload(503))["detail"]
        assert "make it a member of the role that owns it" in refusal
        role.guarded.run(f"GRANT {role.name} TO {other.name}")
        assert (await there.reload())["settings"] == ["store.dsn"]
        await until(lambda: role.connections() == 0, what="the move of every connection")
        assert other.connections() > 0
        role.guarded.run(f"ALTER ROLE {role.name} NOLOGIN")
        await there.delivers("second")


async def test_another_host_of_the_same_database_is_taken(tmp_path: Path, role: Role) -> None:
    async with scene(tmp_path, role.name, role.dsn()) as there:
        there.name(role.dsn(host="localhost", hostaddr="127.0.0.1", sslmode="require"))
        await there.reload()
        await there.delivers("second")
        status = await there.operator.get("/status")
        assert " at localhost" in str(status)


async def test_another_database_is_refused(tmp_path: Path, role: Role) -> None:
    role.guarded.run(f"CREATE DATABASE {role.name} OWNER {role.name}")
    try:
        async with scene(tmp_path, role.name, role.dsn()) as there:
            there.name(role.dsn(dbname=role.name))
            refusal = await there.reload(503)
            assert refusal["detail"].startswith(
                "store.dsn names another database than the one in use"
            )
            await there.delivers("second")
    finally:
        role.guarded.run(f"DROP DATABASE {role.name} WITH (FORCE)")


async def test_a_copy_of_the_servers_files_that_is_older_than_the_relay_is_refused(
    tmp_path: Path, role: Role
) -> None:
    async with scene(tmp_path, role.name, role.dsn()) as there:
        # Such a copy has the same numbers of server and database, and lacks this relay.
        members = f"{role.name}.members"
        role.guarded.run(f"ALTER TABLE {members} ADD CONSTRAINT copied CHECK (false) NOT VALID")
        role.guarded.run(f"DELETE FROM {members}")
        there.name(role.dsn(application_name="again"))
        refusal = await there.reload(503)
        assert refusal["detail"].startswith("store.dsn names another database than the one in use")
        role.guarded.run(f"ALTER TABLE {members} DROP CONSTRAINT copied")


class GuardedBouncer(PgBouncer):
    """Lets in by password, and logs in by it at the server."""

    def __init__(self, folder: Path, role: Role) -> None:
        super().__init__(folder, role.guarded.server)
        file = folder / "pgbouncer.ini"
        file.write_text(file.read_text().replace("auth_type = trust", "auth_type = scram-sha-256"))
        self._role = role
        self.admit(PASSWORD)

    def admit(self, password: str) -> None:
        (self.folder / "users").write_text(f'"{self._role.name}" "{password}"\n')


@pytest.fixture
def pooler(role: Role) -> Iterator[GuardedBouncer]:
    with TemporaryDirectory() as folder:
        pooler = GuardedBouncer(Path(folder), role)
        pooler.start()
        yield pooler
        pooler.kill()


async def test_a_rotated_password_is_taken_behind_a_pooler(
    tmp_path: Path, role: Role, pooler: GuardedBouncer
) -> None:
    async with scene(tmp_path, role.name, role.dsn(port=pooler.port)) as there:
        role.rotate()
        pooler.admit(NEW)
        pooler.kill()
        pooler.start()
        assert await there.send("second") == 503
        there.name(role.dsn(port=pooler.port, password=NEW))
        assert (await there.reload())["settings"] == ["store.dsn"]
        await there.delivers("second")


async def test_what_runs_on_an_old_connection_ends_before_it_moves(
    tmp_path: Path, role: Role
) -> None:
    async with scene(tmp_path, role.name, role.dsn()) as there:
        store: Any = there.relay.service._store
        long = asyncio.create_task(
            store._shared.searcher.read(lambda db: db.execute("SELECT pg_sleep(1)").fetchall())
        )
        await until(lambda: not long.done(), what="the long read")
        there.name(role.dsn(application_name="moved"))
        await there.reload()
        assert len(await long) == 1
        await until(
            lambda: (
                role.guarded.run(
                    "SELECT count(*) FROM pg_stat_activity "
                    f"WHERE usename = '{role.name}' AND application_name = 'relay'"
                )
                == [(0,)]
            ),
            what="the move of every connection",
        )
        await there.delivers("second")
