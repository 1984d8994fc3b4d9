"""The numbers of the events that a selection can match, from its times and its kind."""

from collections.abc import Callable

from relay.store.selection import Selection

MARGIN_MS = 3_600_000
"""How far the clock may have been set back: sources do not tolerate as much, by far."""

Received = Callable[[int], int | None]
"""Returns the receipt of the first event from a number on."""


def seq_range(
    selection: Selection,
    numbers: range,
    *,
    received_ms: Received,
    newest_ms: Callable[[str, str | None], int | None],
) -> range:
    """Return the numbers of all events that the selection can match, and of others.

    `numbers` are those of all events; `newest_ms` returns the receipt of the last event that may be
    of a kind and a source, None if there never was one.
    """
    start, stop = numbers.start, numbers.stop
    if not numbers:
        return numbers
    if selection.before is not None:
        stop = min(stop, selection.before)
    if selection.kind is not None:
        last_ms = newest_ms(selection.kind, selection.source)
        stop = (
            start if last_ms is None else _first(received_ms, last_ms + MARGIN_MS + 1, start, stop)
        )
    if selection.until_ms is not None:
        stop = _first(received_ms, selection.until_ms + MARGIN_MS, start, stop)
    if selection.since_ms is not None:
        start = _first(received_ms, selection.since_ms - MARGIN_MS, start, stop)
    return range(start, max(start, stop))


def _first(received_ms: Received, ms: int, start: int, stop: int) -> int:
    """Return the number of the first event received then or later, by bisection."""
    while start < stop:
        middle = (start + stop) // 2
        received = received_ms(middle)
        if received is not None and received < ms:
            start = middle + 1
        else:
            stop = middle
    return start
