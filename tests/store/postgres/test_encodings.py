"""Databases whose encoding is not UTF8, and settings of roles that the store does not depend on."""

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from relay.core.config_values import Secret
from relay.core.errors import StoreRefused, StoreUnavailable
from relay.store import Reached, engines
from relay.store.postgres import server
from relay.store.postgres.driver import Database, parse
from relay.store.postgres.settings import PostgresSettings
from relay.store.postgres.text import Encoding
from tests.conftest import NOW_MS, ManualClock
from tests.store.conformance import accept, event, ids, lease, settlement
from tests.store.places import PostgresPlace, shared_server

pytestmark = pytest.mark.servers

BEYOND_LATIN = "видео-🎬"


class EncodedPlace(PostgresPlace):
    """A schema in a database of its own encoding, as relays made them before."""

    def __init__(self, encoding: str) -> None:
        super().__init__()
        self.database = f"in {encoding}"
        self.server.execute(
            f"CREATE DATABASE \"{self.database}\" ENCODING '{encoding}' TEMPLATE template0 "
            "LC_COLLATE 'C' LC_CTYPE 'C'"
        )

    def settings(self, **settings: object) -> PostgresSettings:
        dsn = self.server.dsn.replace("dbname=postgres", f"dbname='{self.database}'")
        return PostgresSettings(dsn=Secret(dsn), schema=self.schema, **settings)  # type: ignore[arg-type]

    async def make(self) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(server, "require_encoding", lambda _: None)
            async with self.open(ManualClock(NOW_MS)):
                pass

    def drop(self) -> None:
        self.server.execute(f'DROP DATABASE "{self.database}" WITH (FORCE)')


@pytest.fixture(params=["SQL_ASCII", "LATIN1"])
def encoded_place(request: pytest.FixtureRequest) -> Iterator[EncodedPlace]:
    place = EncodedPlace(request.param)
    yield place
    place.drop()


@pytest.fixture
def ascii_place() -> Iterator[EncodedPlace]:
    place = EncodedPlace("SQL_ASCII")
    yield place
    place.drop()


@pytest.fixture
def latin_place() -> Iterator[EncodedPlace]:
    place = EncodedPlace("LATIN1")
    yield place
    place.drop()


async def reached(settings: PostgresSettings) -> Reached:
    result = await engines.of(settings).reach(settings)
    assert result is not None
    return result


async def test_no_schema_begins_in_a_database_of_another_encoding(
    encoded_place: EncodedPlace,
) -> None:
    settings = encoded_place.settings()
    with pytest.raises(StoreRefused) as checked:
        await reached(settings)
    with pytest.raises(StoreRefused) as opened:
        await engines.open_store(settings, clock=ManualClock())
    assert str(checked.value) == str(opened.value)
    assert str(opened.value).endswith(
        "which does not hold every event: "
        "make another with CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0"
    )
    db = Database(settings.dsn.reveal(), settings.schema)
    assert (
        db.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (db._schema,)).fetchall() == []
    )
    db.close()


async def test_an_existing_schema_opens_with_a_warning_and_delivers(
    encoded_place: EncodedPlace,
) -> None:
    await encoded_place.make()
    (found,) = (await reached(encoded_place.settings())).warnings
    async with encoded_place.open(ManualClock(NOW_MS)) as store:
        assert (found,) == store.warnings()
        assert found.needs_action
        assert encoded_place.database.endswith(found.fields["reason"].rsplit(" ", 1)[1])
        assert await accept(store, event("a"), event("café")) == ["accepted", "accepted"]
        leased = await lease(store)
        assert ids(leased) == ["a", "café"]
        # What the destination said must not keep its delivery from being settled.
        for delivery in leased.deliveries:
            made = settlement(delivery, "delivered")
            await store.settle(replace(made, attempt=replace(made.attempt, answer=BEYOND_LATIN)))
        assert (await store.backlogs())["sales"].pending == 0


async def test_an_event_that_the_encoding_cannot_hold_is_not_acknowledged(
    latin_place: EncodedPlace,
) -> None:
    await latin_place.make()
    async with latin_place.open(ManualClock(NOW_MS)) as store:
        with pytest.raises(StoreUnavailable, match="encoding LATIN1 cannot hold the event's id"):
            await accept(store, event(BEYOND_LATIN))
        assert await accept(store, event("?")) == ["accepted"]


async def test_the_audience_counts_a_video_whose_title_the_encoding_cannot_hold(
    latin_place: EncodedPlace,
) -> None:
    await latin_place.make()
    body = (
        '{"id": "a", "event": "video.watched", "data": {"milestone": 25, '
        f'"video": {{"id": "v", "title": "{BEYOND_LATIN}"}}, "viewer": {{"email": "a@b.de"}}}}}}'
    ).encode()
    async with latin_place.open(ManualClock(NOW_MS)) as store:
        watched = replace(event("a"), kind="video.watched", body=body)
        assert await accept(store, watched) == ["accepted"]
        while await store.audience.count(upto=await store.audience.last_event()):
            pass
        assert await store.audience.count(upto=await store.audience.last_event()) is False


async def test_a_database_with_sql_ascii_holds_any_id(ascii_place: EncodedPlace) -> None:
    await ascii_place.make()
    async with ascii_place.open(ManualClock(NOW_MS)) as store:
        assert await accept(store, event(BEYOND_LATIN)) == ["accepted"]
        assert await accept(store, event(BEYOND_LATIN)) == ["duplicate"]
        assert ids(await lease(store)) == [BEYOND_LATIN]


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
async def test_the_encoding_of_the_client_is_the_relays_own(
    postgres_place: PostgresPlace, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", encoding)
    async with postgres_place.open(ManualClock(NOW_MS)) as store:
        assert await accept(store, event(BEYOND_LATIN)) == ["accepted"]
        assert ids(await lease(store)) == [BEYOND_LATIN]


async def test_a_schema_moves_to_a_database_with_utf8(encoded_place: EncodedPlace) -> None:
    await encoded_place.make()
    async with encoded_place.open(ManualClock(NOW_MS)) as store:
        await accept(store, event("café"))
    source = encoded_place.settings().dsn.reveal()
    encoded_place.server.execute(f'CREATE DATABASE "to {encoded_place.database}"')
    target = source.replace("dbname='", "dbname='to ")
    dump = encoded_place.server.folder / "dump.sql"
    try:
        encoded_place.server.run(
            *("pg_dump", "--encoding=UTF8", f'--schema="{encoded_place.schema}"', "-f", str(dump)),
            *("-d", source),
        )
        encoded_place.server.run(
            "psql", "-q", "-v", "ON_ERROR_STOP=1", "-f", str(dump), "-d", target
        )
        moved = PostgresSettings(dsn=Secret(target), schema=encoded_place.schema)
        store = await engines.open_store(moved, clock=ManualClock(NOW_MS))
        assert store.warnings() == ()
        assert await accept(store, event("café")) == ["duplicate"]
        await store.close()
    finally:
        encoded_place.server.execute(f'DROP DATABASE "to {encoded_place.database}" WITH (FORCE)')


def test_an_encoding_without_a_codec_holds_ascii() -> None:
    encoding = Encoding("MULE_INTERNAL")
    assert encoding.holds("a")
    assert encoding.fit("aé") == "a?"
    assert Encoding("WIN1252").holds("€")


def with_setting(place: PostgresPlace, setting: str) -> PostgresSettings:
    dsn = f"{place.server.dsn} options='-c {setting}'"
    return PostgresSettings(dsn=Secret(dsn), schema=place.schema)


async def test_a_role_that_takes_null_for_a_text_is_refused(postgres_place: PostgresPlace) -> None:
    settings = with_setting(postgres_place, "array_nulls=off")
    with pytest.raises(StoreRefused) as opened:
        await engines.open_store(settings, clock=ManualClock())
    assert str(opened.value) == (
        "the database refuses the relay: array_nulls is off for this role or database; "
        "run ALTER ROLE ... RESET array_nulls, or the same of the database"
    )


@pytest.mark.parametrize(
    "setting",
    [
        "default_transaction_isolation=serializable",
        "client_min_messages=error",
    ],
)
async def test_a_setting_that_weakens_the_store_is_warned_of(
    postgres_place: PostgresPlace, setting: str
) -> None:
    settings = with_setting(postgres_place, setting)
    store = await engines.open_store(settings, clock=ManualClock(NOW_MS))
    (warning,) = store.warnings()
    await store.close()
    assert warning.fields["reason"] == setting.replace("=", " is ")
    assert (await reached(settings)).warnings == (warning,)


def test_a_transaction_sees_what_others_commit_whatever_the_role_has_set() -> None:
    dsn = shared_server().dsn
    db = Database(f"{dsn} options='-c default_transaction_isolation=serializable'", "relay")
    with db.transaction():
        row = db.execute("SELECT current_setting('transaction_isolation')").fetchone()
        assert row == ("read committed",)
    db.close()


async def test_backslashes_of_the_store_mean_what_they_say_for_each_role(
    postgres_place: PostgresPlace,
) -> None:
    settings = with_setting(postgres_place, "standard_conforming_strings=off")
    store = await engines.open_store(settings, clock=ManualClock(NOW_MS))
    await store.close()
    db = Database(settings.dsn.reveal(), settings.schema)
    body = rb'{"a": "\ud800x"}'
    assert db.execute("SELECT relay.body_value(%s, 'a')", (body,)).fetchall() == [("\ufffdx",)]
    db.close()


@pytest.mark.parametrize(
    "dsn", ["postgresql://me:pa@ss@host/db", "postgresql://me:pa/ss@host/db", "port=5432x"]
)
def test_the_rest_of_a_password_is_not_taken_for_a_host_or_a_port(dsn: str) -> None:
    with pytest.raises(ValueError, match="encode / and @ of a password"):
        parse(dsn)


@pytest.mark.parametrize(
    "dsn",
    [
        "host=@/run/postgres",
        "postgresql://me:p%40s@a:1,b:2/db",
        "host=a,b port=5432,5433",
        "dbname=x",
    ],
)
def test_hosts_and_ports_of_every_form_are_taken(dsn: str) -> None:
    assert parse(dsn)
