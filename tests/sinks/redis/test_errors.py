"""How the `redis` sink fails on a server that has no room for it or does not let it in."""

import asyncio
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace
from redis import exceptions
from redis.exceptions import AuthenticationError

from relay.core.errors import Misconfigured, SinkError, Temporary
from relay.core.event import Event
from relay.sinks.redis.errors import MEANINGS, classify
from tests.brokers.redis import RedisServer
from tests.conftest import ManualClock
from tests.sinks.conformance import error_of
from tests.sinks.redis.conftest import Make
from tests.sinks.redis.harness import FAILURES, RedisHarness


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (AuthenticationError("no"), Misconfigured, "wrong user or password"),
        (exceptions.TimeoutError("x"), Temporary, "no answer in time"),
        (TimeoutError(), Temporary, "no answer in time"),
        (exceptions.InvalidResponse("x"), Temporary, "what answers there is not a Redis server"),
        (ConnectionRefusedError(), Temporary, "connection refused"),
        (ConnectionResetError(), Temporary, "could not connect, or the connection was lost"),
    ],
    ids=repr,
)
def test_an_error_below_the_clients_own_has_a_meaning(
    error: Exception, kind: type[SinkError], text: str
) -> None:
    above = exceptions.ConnectionError("x")
    above.__cause__ = error
    for each in (error, above):
        meaning = classify(each)
        assert type(meaning) is kind
        assert str(meaning) == text


def test_a_bug_stays_visible() -> None:
    bug = KeyError("stream")
    assert classify(bug) is bug


async def test_a_full_server_keeps_confirmed_events_and_the_others_wait(
    server: RedisServer, make: Make, lead: Event
) -> None:
    server.configure(maxmemory_policy="noeviction", maxmemory="2mb")
    sink = make(timeout="60s")
    events = [replace(lead, id=f"evt_{number}") for number in range(3000)]
    found = await asyncio.gather(*(sink.send(event) for event in events), return_exceptions=True)
    late = [event for event, each in zip(events, found, strict=True) if type(each) is Temporary]
    assert 0 < len(late) < len(events)
    assert len(server.read()) == len(events) - len(late)
    server.configure(maxmemory=0)
    await asyncio.gather(*(sink.send(event) for event in late))
    assert {fields[b"id"].decode() for fields in server.read()} == {each.id for each in events}


async def test_a_missing_stream_is_made(server: RedisServer, make: Make, lead: Event) -> None:
    await make(stream="never-seen").send(lead)
    assert len(server.read("never-seen")) == 1


async def test_a_database_that_is_not_there_is_misconfigured(
    server: RedisServer, make: Make, lead: Event
) -> None:
    sink = make(url=server.url.removesuffix("0") + "99")
    for trial in (sink.send(lead), sink.check()):
        with pytest.raises(Misconfigured, match="the server has no database of this number"):
            await trial


async def test_a_missing_login_is_misconfigured(
    server: RedisServer, make: Make, lead: Event
) -> None:
    error = await error_of(make(url=f"redis://127.0.0.1:{server.port}"), lead)
    assert (type(error), error.reason) == (Misconfigured, "NOAUTH: the server asks for a password")


@pytest.mark.servers
async def test_a_server_that_demands_a_certificate_takes_nothing_without_one(
    tmp_path: Path, lead: Event
) -> None:
    async with RedisHarness() as destination:
        authority, table = await destination.secure(tmp_path / "tls")
        sink = destination.build(ManualClock(), **table, ca_file=str(authority.file))
        with pytest.raises(SinkError) as caught:
            await sink.send(lead)
        await sink.close()
        assert destination.messages() == []
    # The server's reset may overtake its alert, and then the reason is unknown.
    assert (type(caught.value), caught.value.reason) in [
        (Misconfigured, "the server does not accept our TLS certificate"),
        (Temporary, "could not connect, or the connection was lost"),
    ]


async def test_xadd_is_all_that_delivery_needs(
    server: RedisServer, make: Make, lead: Event
) -> None:
    server.set_user(rights="-@all +xadd +ping")
    sink = make()
    await sink.send(lead)
    await sink.check()
    assert len(server.read()) == 1


async def test_a_check_names_a_key_that_is_not_a_stream(server: RedisServer, make: Make) -> None:
    sink = make()
    await sink.check()
    with closing(server.admin()) as admin:
        admin.set("relay", "else")
    with pytest.raises(Misconfigured, match="the key relay holds something else than a stream"):
        await sink.check()


@pytest.mark.parametrize(
    ("cause", "reason"),
    [
        ("it is a replica", "READONLY"),
        ("it has too few replicas", "NOREPLICAS"),
        ("the memory is full", "OOM"),
        ("the user may not add", "NOPERM"),
        ("the password is wrong", "WRONGPASS"),
    ],
)
async def test_a_check_finds_what_would_fail_a_send(
    server: RedisServer, make: Make, lead: Event, cause: str, reason: str
) -> None:
    FAILURES[cause](server)
    sink = make()
    for trial in (sink.check(), sink.send(lead)):
        with pytest.raises(MEANINGS[reason][0], match=f"^{reason}: "):
            await trial


async def test_a_check_finds_a_key_that_the_user_may_not_write(
    server: RedisServer, make: Make
) -> None:
    with closing(server.admin()) as admin:
        admin.execute_command("ACL", "SETUSER", "relay", "resetkeys", "~other", "%R~relay")
    await make(stream="other").check()
    with pytest.raises(Misconfigured, match=r"^NOPERM: "):
        await make().check()


async def test_a_check_makes_no_stream(server: RedisServer, make: Make) -> None:
    await make().check()
    with closing(server.admin()) as admin:
        assert admin.keys() == []
