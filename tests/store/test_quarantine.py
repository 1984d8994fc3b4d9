"""The quarantine keeps and counts unverified requests, and leaves no trace once they expire."""

from relay.core.authentication import UnverifiedRequest
from relay.store import Store
from relay.store.quarantine import STEP_BYTES, STEP_ROWS, Rotation
from tests.conftest import NOW_MS, ManualClock
from tests.store.places import Place, PostgresPlace

UNTIL_MS, EXPIRES_MS = NOW_MS + 900_000, NOW_MS + 1_580_000


def request(body: bytes = b"{}", *, source: str = "main", at_ms: int = NOW_MS) -> UnverifiedRequest:
    return UnverifiedRequest(source, at_ms, b"t=1,v1=00", b"host: relay\r\n", body)


async def begin(store: Store, source: str = "main", now_ms: int = NOW_MS) -> Rotation:
    return await store.quarantine.begin(
        source, now_ms=now_ms, until_ms=now_ms + 900_000, expires_ms=now_ms + 1_580_000
    )


async def waiting(store: Store, source: str = "main") -> list[UnverifiedRequest]:
    found = await store.quarantine.waiting(source, after=0, limit=1000)
    return [each.request for each in found]


async def test_kept_requests_are_returned_unchanged_in_order_and_by_source(
    store: Store,
) -> None:
    await begin(store)
    kept = [request(b"\x00\xff{"), request(b"", at_ms=NOW_MS + 1), request(b"{}" * 500)]
    for each in (*kept, request(source="other")):
        await store.quarantine.keep(each)
    assert await waiting(store) == kept
    first, second = await store.quarantine.waiting("main", after=0, limit=2)
    assert (first.request, second.request) == (kept[0], kept[1])
    (third,) = await store.quarantine.waiting("main", after=second.number, limit=2)
    assert third.request == kept[2]


async def test_a_rotation_is_counted_and_survives_a_restart(
    place: Place, clock: ManualClock
) -> None:
    async with place.open(clock) as store:
        await begin(store)
        for body in (b"a", b"b", b"c"):
            await store.quarantine.keep(request(body))
        first, second, _ = await store.quarantine.waiting("main", after=0, limit=9)
        await store.quarantine.release("main", [first.number, second.number], duplicates=1)
    expected = Rotation(
        source="main",
        begun_ms=NOW_MS,
        until_ms=UNTIL_MS,
        expires_ms=EXPIRES_MS,
        kept=3,
        verified=2,
        duplicates=1,
        waiting=1,
        bytes=request(b"c").size,
    )
    async with place.open(clock) as store:
        assert await store.quarantine.rotations() == [expected]
        assert await store.quarantine.rotation("main") == expected
        assert await store.quarantine.rotation("other") is None


async def test_a_second_start_extends_and_never_shortens(store: Store) -> None:
    await begin(store)
    await store.quarantine.keep(request())
    longer = await begin(store, now_ms=NOW_MS + 60_000)
    assert (longer.begun_ms, longer.until_ms) == (NOW_MS, UNTIL_MS + 60_000)
    shorter = await store.quarantine.begin(
        "main", now_ms=NOW_MS + 70_000, until_ms=NOW_MS + 80_000, expires_ms=NOW_MS + 90_000
    )
    assert (shorter.until_ms, shorter.expires_ms, shorter.kept) == (
        UNTIL_MS + 60_000,
        EXPIRES_MS + 60_000,
        1,
    )


async def test_a_start_after_the_end_is_a_new_rotation_with_the_waiting_requests(
    store: Store,
) -> None:
    await begin(store)
    for body in (b"a", b"b"):
        await store.quarantine.keep(request(body))
    first, _ = await store.quarantine.waiting("main", after=0, limit=9)
    await store.quarantine.release("main", [first.number], duplicates=1)
    await store.quarantine.disarm("main", now_ms=NOW_MS + 5)
    ended = await store.quarantine.rotation("main")
    assert ended is not None
    assert (ended.until_ms, ended.expires_ms) == (NOW_MS + 5, EXPIRES_MS)
    again = await begin(store, now_ms=NOW_MS + 10)
    assert (again.begun_ms, again.until_ms) == (NOW_MS + 10, UNTIL_MS + 10)
    assert (again.kept, again.verified, again.duplicates, again.waiting) == (1, 0, 0, 1)


async def expire(store: Store, source: str = "main") -> int:
    """In how many steps."""
    steps = 1
    while await store.quarantine.expire(source):
        steps += 1
    return steps


async def test_only_expired_requests_are_removed_in_small_steps(
    store: Store,
) -> None:
    await begin(store)
    await begin(store, "other")
    await store.quarantine.keep(request(source="other"))
    for number in range(STEP_ROWS + 1):
        await store.quarantine.keep(request(b"%d" % number))
    assert await expire(store) == 3
    for _ in range(2):
        await store.quarantine.keep(request(b"x" * STEP_BYTES))
    assert await expire(store) == 3
    assert await waiting(store) == []
    assert [each.source for each in await store.quarantine.rotations()] == ["other"]
    assert len(await waiting(store, "other")) == 1


async def test_requests_that_another_relay_has_released_are_counted_once(
    postgres_place: PostgresPlace, clock: ManualClock
) -> None:
    async with postgres_place.open(clock) as one, postgres_place.open(clock) as other:
        await begin(one)
        for body in (b"a", b"b"):
            await one.quarantine.keep(request(body))
        numbers = [each.number for each in await one.quarantine.waiting("main", after=0, limit=9)]
        for store in (one, other):
            await store.quarantine.release("main", numbers, duplicates=1)
        rotation = await other.quarantine.rotation("main")
        assert rotation is not None
        assert (rotation.kept, rotation.verified, rotation.duplicates) == (2, 2, 1)
