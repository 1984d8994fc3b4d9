"""Stored requests without a usable event."""

import hashlib
from typing import Any

from relay.store import Store
from relay.store.unreadable import UnreadableReason, UnreadableSelection
from tests.conftest import NOW_MS
from tests.store.places import Place

ALL = UnreadableSelection()


def keep(
    place: Place,
    body: bytes,
    *,
    source: str = "main",
    reason: str = "the body is not JSON",
    at_ms: int = NOW_MS,
) -> str:
    """Store a request as `Store.keep` does; return its id."""
    digest = hashlib.sha256(body)
    place.rows(
        """
        INSERT INTO relay.unreadable (source, digest, received_at, reason, headers, body)
        VALUES (%s, %s, %s, %s, %s, %s)
        """,
        source, digest.digest(), at_ms, reason, b"host: relay\r\n", body,
    )  # fmt: skip
    return digest.hexdigest()


async def test_requests_are_listed_with_the_newest_first(store: Store, place: Place) -> None:
    kept = [keep(place, b"%d" % number, at_ms=NOW_MS + number) for number in range(3)]
    listed = await store.unreadable.newest(ALL, limit=9)
    assert [each.id for each in listed] == kept[::-1]
    assert [each.received_ms for each in listed] == [NOW_MS + 2, NOW_MS + 1, NOW_MS]
    newest = listed[0]
    assert (newest.source, newest.reason, newest.bytes) == ("main", "the body is not JSON", 1)
    assert await store.unreadable.newest(UnreadableSelection(before=newest.seq), limit=1) == [
        listed[1]
    ]


async def test_a_request_is_found_by_the_beginning_of_its_id(store: Store, place: Place) -> None:
    wanted = keep(place, b"[\0\xff")
    keep(place, b"[\0\xff", source="other")
    keep(place, b"x")
    found = await store.unreadable.find(wanted[:12], source=None, limit=9)
    assert {each.request.source for each in found} == {"main", "other"}
    (one,) = await store.unreadable.find(wanted, source="main", limit=9)
    assert (one.body, one.headers, one.is_damaged) == (b"[\0\xff", b"host: relay\r\n", False)
    assert await store.unreadable.find(wanted, source="third", limit=9) == []
    assert await store.unreadable.find(wanted[:63], source="main", limit=9) == [one]
    assert len(await store.unreadable.find("", source=None, limit=2)) == 2


async def test_reasons_are_counted_with_the_most_frequent_first(store: Store, place: Place) -> None:
    for number in range(3):
        keep(place, b"%d" % number, at_ms=NOW_MS + number)
    keep(place, b"x", reason="B")
    keep(place, b"y", reason="a")
    assert await store.unreadable.reasons(ALL) == [
        UnreadableReason("main", "the body is not JSON", 3, NOW_MS, NOW_MS + 2),
        UnreadableReason("main", "B", 1, NOW_MS, NOW_MS),
        UnreadableReason("main", "a", 1, NOW_MS, NOW_MS),
    ]


async def test_a_discarded_request_is_deleted(store: Store, place: Place) -> None:
    keep(place, b"a")
    keep(place, b"a", source="other")
    first = (await store.unreadable.newest(ALL, limit=9))[-1]
    await store.unreadable.discard([first])
    await store.unreadable.discard([first, first])
    assert place.rows("SELECT source FROM relay.unreadable") == [("other",)]


async def test_a_damaged_body_is_marked(store: Store, place: Place) -> None:
    wanted = keep(place, b"a")
    place.rows("UPDATE relay.unreadable SET body = %s", b"b")
    (found,) = await store.unreadable.find(wanted, source=None, limit=9)
    assert found.is_damaged


async def test_requests_are_selected_by_all_that_is_given(store: Store, place: Place) -> None:
    first = keep(place, b"a", at_ms=NOW_MS)
    second = keep(place, b"b", at_ms=NOW_MS + 5, reason="id is 100%_ no text")
    third = keep(place, b"a", source="other", at_ms=NOW_MS + 9)

    async def found(**chosen: Any) -> list[tuple[str, str]]:
        selection = UnreadableSelection(**chosen)
        listed = await store.unreadable.newest(selection, limit=9)
        walked = await store.unreadable.contents(selection, after=0, limit=9)
        assert [each.request for each in walked] == listed[::-1]
        counted = await store.unreadable.reasons(selection)
        assert sum(each.count for each in counted) == len(listed)
        return [(each.source, each.id) for each in listed]

    assert await found() == [("other", third), ("main", second), ("main", first)]
    assert await found(source="other") == [("other", third)]
    assert await found(reason="100%_") == [("main", second)]
    assert await found(reason="\0") == []
    assert await found(since_ms=NOW_MS + 5) == [("other", third), ("main", second)]
    assert await found(until_ms=NOW_MS + 9) == [("main", second), ("main", first)]
    assert await found(source="main", reason="JSON", until_ms=NOW_MS + 1) == [("main", first)]


async def test_requests_are_walked_with_their_contents(store: Store, place: Place) -> None:
    kept = [keep(place, b"%d" % number) for number in range(5)]
    seen, after = [], 0
    while step := await store.unreadable.contents(ALL, after=after, limit=2):
        seen += [(each.request.id, each.body) for each in step]
        after = step[-1].request.seq
    assert seen == [(each, b"%d" % number) for number, each in enumerate(kept)]
