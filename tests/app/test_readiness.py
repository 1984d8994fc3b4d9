"""`/readyz` of a relay whose store refuses events, on both engines."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import httpx
import pytest

from relay import config
from relay.app.service import Service
from relay.core import sample_events, signature
from relay.core.clock import SystemClock
from relay.core.event import LEAD_CAPTURED
from relay.store.absences import Absence
from relay.store.sqlite.store import SqliteStore
from tests.app.test_service import running
from tests.guarantees.process import http_client
from tests.store.places import Place, PostgresPlace, SqlitePlace

SECRET = "a-secret-of-the-test-0123456789abcdef"

_REFUSE = {
    "sqlite": """
CREATE TRIGGER refuse BEFORE INSERT ON events WHEN {condition}
BEGIN SELECT raise(ABORT, 'refused'); END
""",
    "postgres": """
DO $do$ BEGIN
    CREATE FUNCTION relay.refuse() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE EXCEPTION USING errcode = '{code}'; END $$;
    CREATE TRIGGER refuse BEFORE INSERT ON relay.events FOR EACH ROW
        WHEN ({condition}) EXECUTE FUNCTION relay.refuse();
END $do$
""",
}
_STOP = {"sqlite": "DROP TRIGGER refuse", "postgres": "DROP FUNCTION relay.refuse CASCADE"}


class Scene:
    """A running relay, and its store."""

    def __init__(self, service: Service, place: Place, client: httpx.AsyncClient) -> None:
        self._service = service
        self._place = place
        self._client = client
        self._engine = "sqlite" if isinstance(place, SqlitePlace) else "postgres"

    async def refuse(self, condition: str, *, code: str = "22021") -> None:
        """Let the store refuse the events of a condition, on PostgreSQL with this SQLSTATE."""
        await self._change(_REFUSE[self._engine].format(condition=condition, code=code))

    async def refuse_no_longer(self) -> None:
        await self._change(_STOP[self._engine])

    async def _change(self, sql: str) -> None:
        if isinstance(self._service._store, SqliteStore):
            # Its file is the relay's alone: after a commit of another, a failed one is unknown.
            await self._service._store._writer.execute(sql, ())
        else:
            self._place.rows(sql)

    async def post(self, event_id: str) -> int:
        body = sample_events.event(LEAD_CAPTURED, event_id=event_id).body
        now_s = SystemClock().now_ms() // 1000
        header = signature.header(SECRET.encode(), now_s=now_s, body=body)
        url = f"{self._service.public.url}/webhooks"
        answer = await self._client.post(url, content=body, headers={"Service-Signature": header})
        return answer.status_code

    async def readyz(self) -> int:
        return (await self._client.get(f"{self._service.admin.url}/readyz")).status_code

    async def until_ready(self) -> None:
        async with asyncio.timeout(20):
            while await self.readyz() != 200:
                await asyncio.sleep(0.05)

    async def absences(self) -> Sequence[Absence]:
        return await self._service._store.absences.newest(before=None, limit=9)

    def stored(self) -> set[str]:
        return {event_id for (event_id,) in self._place.rows("SELECT id FROM relay.events")}


@pytest.fixture(
    params=["sqlite", pytest.param("postgres", marks=[pytest.mark.long, pytest.mark.servers])]
)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "sqlite":
        yield SqlitePlace(tmp_path)
        return
    place = PostgresPlace()
    yield place
    place.drop()


@pytest.fixture
async def scene(place: Place, tmp_path: Path) -> AsyncIterator[Scene]:
    async with running(_config(place, tmp_path)) as service, http_client() as client:
        yield Scene(service, place, client)


def _config(place: Place, folder: Path) -> config.Config:
    if isinstance(place, PostgresPlace):
        store = f'type = "postgres"\ndsn = "{place.server.dsn}"\nschema = "{place.schema}"'
    else:
        store = f'path = "{folder / "relay.db"}"\nmin_free = "1B"'
    file = folder / "config.toml"
    file.write_text(f"""
[server]
listen = "127.0.0.1:0"
admin_listen = "127.0.0.1:0"
drain_timeout = "1s"
[store]
{store}
[[source]]
name = "main"
path = "/webhooks"
secrets = ["{SECRET}"]
""")
    return config.load(file)


async def test_a_relay_that_can_accept_nothing_is_not_ready_until_it_can(scene: Scene) -> None:
    assert await scene.post("a") == 202
    await scene.refuse("1 = 1", code="53100")
    assert await scene.post("b") == 503
    for _ in range(5):
        assert await scene.readyz() == 503
    await scene.refuse_no_longer()
    await scene.until_ready()
    assert scene.stored() == {"a"}
    assert await scene.post("b") == 202


async def test_a_time_in_which_all_events_are_refused_is_an_absence(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.app.maintenance.HEARTBEAT_EVERY_S", 0.05)
    monkeypatch.setattr("relay.app.maintenance.STALL_MS", 3000)
    async with running(_config(place, tmp_path)) as service, http_client() as client:
        scene = Scene(service, place, client)
        assert await scene.post("a") == 202
        await scene.refuse("1 = 1", code="42703")
        begun_ms = SystemClock().now_ms()
        assert await scene.post("b") == 503
        await asyncio.sleep(4)
        await scene.refuse_no_longer()
        async with asyncio.timeout(20):
            while not (absences := await scene.absences()):
                await asyncio.sleep(0.05)
        assert absences[0].cause == "stalled"
        assert absences[0].from_ms <= begun_ms + 1000
        assert absences[0].to_ms >= begun_ms + 4000


async def test_an_idle_relay_that_can_accept_nothing_is_not_ready(scene: Scene) -> None:
    await scene.refuse("1 = 1", code="42703")
    async with asyncio.timeout(20):
        while await scene.readyz() != 503:
            await asyncio.sleep(0.05)
    assert scene.stored() == set()


async def test_an_event_that_cannot_be_stored_leaves_the_relay_ready(scene: Scene) -> None:
    await scene.refuse("NEW.id = 'poison'")
    assert await scene.post("poison") == 503
    await scene.until_ready()
    assert await scene.post("a") == 202
    assert await scene.readyz() == 200
    assert scene.stored() == {"a"}


async def test_a_known_event_proves_nothing(scene: Scene) -> None:
    assert await scene.post("a") == 202
    await scene.refuse("NEW.id <> 'a'")
    assert await scene.post("b") == 503
    assert await scene.post("a") == 200
    assert await scene.readyz() == 503
