"""What a start says of a database that does not take the relay: one line, and whether to wait."""

from collections.abc import Callable
from pathlib import Path

import pytest

from relay.core.config_values import Secret
from relay.core.errors import StoreError, StoreRefused, StoreTooNew, StoreUnavailable
from relay.store import engines
from relay.store.postgres.driver import psycopg
from relay.store.postgres.errors import startup_error
from relay.store.postgres.settings import PostgresSettings
from tests.conftest import ManualClock
from tests.ports import free_port
from tests.postgres.guarded import PASSWORD, GuardedServer, disguised, guarded_server
from tests.store.places import PostgresPlace


@pytest.fixture(scope="module")
def guarded() -> GuardedServer:
    return guarded_server()


def settings(dsn: str, schema: str = "relay") -> PostgresSettings:
    return PostgresSettings(dsn=Secret(dsn), schema=schema)


async def refusal(given: PostgresSettings) -> StoreError:
    """Return the error of a start, which the check of a connection gives likewise."""
    with pytest.raises(StoreError) as checked:
        await engines.of(given).reach(given)
    with pytest.raises(StoreError) as opened:
        await engines.open_store(given, clock=ManualClock())
    assert (type(opened.value), str(opened.value)) == (type(checked.value), str(checked.value))
    assert "\n" not in str(opened.value)
    assert PASSWORD not in str(opened.value)
    return opened.value


Dsn = Callable[[GuardedServer], str]

REFUSED: dict[str, tuple[Dsn, str]] = {
    "a wrong password": (
        lambda guarded: guarded.dsn(password="wrong"),
        'password authentication failed for user "owner"; see user and password in store.dsn',
    ),
    "no password": (
        lambda guarded: guarded.dsn(password="''", passfile="/nowhere"),
        "no password supplied; see user and password in store.dsn",
    ),
    "a missing database": (
        lambda guarded: guarded.dsn(dbname="elsewhere"),
        'database "elsewhere" does not exist; create it, or name another in store.dsn',
    ),
    "a certificate of another authority": (
        lambda guarded: guarded.dsn(sslmode="verify-full", sslrootcert=guarded.stranger),
        "certificate verify failed; see host, sslmode and sslrootcert in store.dsn",
    ),
    "a certificate for another host": (
        lambda guarded: guarded.dsn(
            host="localhost",
            hostaddr="127.0.0.1",
            sslmode="verify-full",
            sslrootcert=guarded.authority,
        ),
        'does not match host name "localhost"; see host, sslmode and sslrootcert in store.dsn',
    ),
    "a missing authority": (
        lambda guarded: guarded.dsn(sslmode="verify-full", sslrootcert="/nowhere/ca.pem"),
        'file "/nowhere/ca.pem" does not exist; see host, sslmode and sslrootcert in store.dsn',
    ),
    "a role that may not create the schema": (
        lambda guarded: guarded.dsn("guest"),
        'in the database relay: run CREATE SCHEMA "relay" AUTHORIZATION "guest" there',
    ),
}


@pytest.mark.parametrize(("dsn", "text"), REFUSED.values(), ids=REFUSED)
async def test_an_error_that_needs_an_operator_is_a_refusal(
    guarded: GuardedServer, dsn: Dsn, text: str
) -> None:
    error = await refusal(settings(dsn(guarded)))
    assert isinstance(error, StoreRefused)
    assert str(error).endswith(text)


async def test_a_role_that_may_only_read_the_schema_is_refused(guarded: GuardedServer) -> None:
    error = await refusal(settings(guarded.dsn("reader"), "closed"))
    assert isinstance(error, StoreRefused)
    assert str(error) == (
        "the role reader may not use and fill the schema closed: "
        'run GRANT USAGE, CREATE ON SCHEMA "closed" TO "reader"'
    )


async def test_a_role_with_its_own_schema_is_enough(guarded: GuardedServer) -> None:
    guarded.run('CREATE SCHEMA "of guest" AUTHORIZATION guest')
    given = settings(guarded.dsn("guest"), "of guest")
    assert (await found(given)).endswith("; serve creates the schema of guest")
    for _ in range(2):
        store = await engines.open_store(given, clock=ManualClock())
        assert store.location == "schema of guest of the database relay at 127.0.0.1"
        await store.close()
    assert (await found(given)).endswith("; the schema of guest is up to date")


async def found(given: PostgresSettings) -> str:
    reached = await engines.of(given).reach(given)
    assert reached is not None
    assert reached.text.startswith("PostgreSQL ")
    return reached.text


async def test_a_preview_changes_nothing(guarded: GuardedServer) -> None:
    await found(settings(guarded.dsn(), "untouched"))
    assert guarded.run("SELECT 1 FROM pg_namespace WHERE nspname = 'untouched'") == []


async def test_a_server_that_is_too_old_is_refused(guarded: GuardedServer) -> None:
    major = guarded.server.programs.parent.name.encode()
    said, says = b"server_version\0" + major, b"server_version\0" + b"12"
    with disguised(guarded.server.port, said=said, says=says) as port:
        error = await refusal(settings(guarded.dsn(port=port, sslmode="disable")))
    assert isinstance(error, StoreRefused)
    assert str(error).startswith("the server is PostgreSQL 12.")
    assert str(error).endswith(": this relay needs 13 or newer")


async def test_a_schema_of_a_newer_relay_is_refused(
    guarded: GuardedServer,
) -> None:
    given = settings(guarded.dsn(), "newer")
    await (await engines.open_store(given, clock=ManualClock())).close()
    guarded.run("INSERT INTO newer.migrations VALUES (9999, 'later', '', 0)")
    assert isinstance(await refusal(given), StoreTooNew)


async def test_a_server_that_only_reads_is_waited_for(guarded: GuardedServer) -> None:
    dsn = guarded.dsn(options="'-c default_transaction_read_only=on'")
    error = await refusal(settings(dsn))
    assert isinstance(error, StoreUnavailable)
    assert str(error).startswith("the server is set to read-only transactions: name the primary")


async def test_a_server_that_is_away_is_waited_for() -> None:
    error = await refusal(settings(f"host=127.0.0.1 port={free_port()} dbname=relay"))
    assert isinstance(error, StoreUnavailable)
    assert str(error).startswith("the database cannot be reached: connection to server at ")
    assert str(error).endswith("failed: Connection refused")


async def test_of_two_hosts_the_unreachable_one_may_be_the_primary_and_both_causes_are_named(
    guarded: GuardedServer,
) -> None:
    dsn = guarded.dsn(
        host="127.0.0.1,127.0.0.1", port=f"{free_port()},{guarded.server.port}", password="wrong"
    )
    error = await refusal(settings(dsn))
    assert isinstance(error, StoreUnavailable)
    refused, unknown = str(error).split("; ")
    assert refused.endswith("failed: Connection refused")
    assert "password authentication failed" in unknown


async def test_a_replica_is_waited_for(guarded: GuardedServer, tmp_path: Path) -> None:
    with guarded.replica(tmp_path) as dsn:
        error = await refusal(settings(dsn))
    assert isinstance(error, StoreUnavailable)
    assert str(error).startswith("the server is in recovery, as a replica is: name the primary")


async def test_settings_with_which_a_server_forgets_are_warned_of(
    postgres_place: PostgresPlace,
) -> None:
    async with postgres_place.open(ManualClock()) as store:
        assert store.warnings() == ()
    dsn = f"{postgres_place.server.dsn} options='-c synchronous_commit=off'"
    store = await engines.open_store(settings(dsn, postgres_place.schema), clock=ManualClock())
    (warning,) = store.warnings()
    await store.close()
    assert warning.event == "store.unsafe_server"
    assert warning.fields["reason"] == "synchronous_commit is off"


def test_an_error_of_an_unknown_kind_shows_no_text() -> None:
    error = startup_error(psycopg.errors.UndefinedTable("marked"))
    assert "marked" not in str(error)
