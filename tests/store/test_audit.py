"""The list of changes, in the store."""

import re

from relay.core import addresses
from relay.store import Store
from relay.store.audit import Change, ChangeRecord
from tests.conftest import NOW_MS, ManualClock
from tests.spellings import ADDRESSES
from tests.store.places import Place, PostgresPlace

ANN = "ann.lee@example.com"


async def begin(store: Store, operation: str = "pause_sink", *, at_ms: int = NOW_MS) -> int:
    return await store.audit.begin(Change(operation=operation), now_ms=at_ms)


async def test_a_change_is_recorded_with_its_request_and_its_result(store: Store) -> None:
    change = Change(
        operation="discard_dead_letters",
        target="crm",
        asked={"reason": "422 \0 é", "ids": [1, 2]},
        actor="admin",
        address="192.0.2.7",
        via="curl/8",
    )
    number = await store.audit.begin(change, now_ms=NOW_MS)
    (begun,) = await store.audit.newest(limit=9)
    assert (begun.ended_ms, begun.status, begun.result) == (None, None, {})
    await store.audit.end(number, status=200, result={"discarded": 2}, now_ms=NOW_MS + 5)
    assert await store.audit.newest(limit=9) == [
        ChangeRecord(
            id=number,
            begun_ms=NOW_MS,
            ended_ms=NOW_MS + 5,
            operation="discard_dead_letters",
            target="crm",
            asked={"reason": "422 \0 é", "ids": [1, 2]},
            status=200,
            result={"discarded": 2},
            actor="admin",
            address="192.0.2.7",
            via="curl/8",
        )
    ]


async def test_changes_are_selected_by_all_that_is_given(store: Store) -> None:
    first = await begin(store, at_ms=NOW_MS)
    second = await begin(store, "erase_person", at_ms=NOW_MS + 5)
    third = await begin(store, at_ms=NOW_MS + 9)

    async def found(**chosen: object) -> list[int]:
        return [each.id for each in await store.audit.newest(**{"limit": 9, **chosen})]  # type: ignore[arg-type]

    assert await found() == [third, second, first]
    assert await found(limit=1) == [third]
    assert await found(before=third) == [second, first]
    assert await found(since_ms=NOW_MS + 5) == [third, second]
    assert await found(until_ms=NOW_MS + 9) == [second, first]
    assert await found(operation="pause_sink", until_ms=NOW_MS + 9) == [first]
    assert await found(operation="none \0") == []


async def test_an_address_is_replaced_by_a_digest_that_is_the_same_after_a_restart(
    place: Place, other_place: Place, clock: ManualClock
) -> None:
    change = Change(operation="erase_person", asked={"email": ANN.upper()}, via=f"tool ({ANN})")
    async with place.open(clock) as store, other_place.open(clock) as other:
        pseudonymized = store.audit.pseudonymized(change)
        digest = pseudonymized.asked["email"]
        assert (digest[:7], pseudonymized.via) == ("person:", f"tool ({digest})")
        assert other.audit.pseudonymized(change) != pseudonymized
    async with place.open(clock) as store:
        assert store.audit.pseudonymized(change) == pseudonymized


async def test_an_address_is_replaced_in_every_spelling(store: Store) -> None:
    for address in ADDRESSES:
        change = Change(operation="x", target=address, via=f"tool <{address}>, twice")
        made = store.audit.pseudonymized(change)
        assert made.target is not None
        assert re.fullmatch("person:[0-9a-f]{16}", made.target), address
        assert made.via == f"tool <{made.target}>, twice"
        asked = Change(operation="x", asked={"email": addresses.plain(address)})
        assert store.audit.pseudonymized(asked).asked["email"] == made.target, address


async def test_text_that_postgresql_refuses_is_stored_without_what_it_refuses(
    postgres_place: PostgresPlace, clock: ManualClock
) -> None:
    async with postgres_place.open(clock) as store:
        change = Change(operation="pause_sink", target="a\0b", via="\ud800")
        await store.audit.begin(change, now_ms=NOW_MS)
        (record,) = await store.audit.newest(limit=1)
        assert (record.target, record.via) == ("a\ufffdb", "\ufffd")


async def test_changes_on_several_relays_are_one_list(
    postgres_place: PostgresPlace, clock: ManualClock
) -> None:
    async with postgres_place.open(clock) as one, postgres_place.open(clock) as other:
        numbers = [await begin(store) for store in (one, other, one)]
        assert [each.id for each in await other.audit.newest(limit=9)] == numbers[::-1]
        change = Change(operation="x", target=ANN)
        assert one.audit.pseudonymized(change) == other.audit.pseudonymized(change)
