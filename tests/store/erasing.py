"""Erasures as a relay carries them out: ordered, then carried on to the end."""

from relay.store import Store
from relay.store.erasures import Erasure


async def erase(store: Store, email: str, *, now_ms: int) -> Erasure:
    """Erase a person's data, and return the result."""
    number = await store.personal_data.order(email, now_ms=now_ms)
    while await store.personal_data.advance():
        pass
    record = await store.personal_data.erasure(number)
    assert record is not None
    assert record.ended_ms is not None
    assert record.erasure is not None
    return record.erasure
