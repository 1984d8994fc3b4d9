"""One try to send an event: under its time limit, and with an error of ours whatever is raised."""

import asyncio

from relay import log
from relay.deadline import Deadlines
from relay.delivery import Answer
from relay.errors import SinkError, Temporary
from relay.event import Event
from relay.settings import Duration
from relay.sink import Sink


async def attempt(
    sink: Sink, name: str, event: Event, *, limit: Duration, deadlines: Deadlines
) -> tuple[Answer, SinkError | None]:
    """Send once; what the sink may not raise is a bug in it, and the event is not to blame."""
    try:
        with deadlines.within(limit.seconds):
            return _storable(await sink.send(event)), None
    except SinkError as error:
        return _storable(Answer(error.status, error.answer)), error
    except TimeoutError:
        return Answer(), Temporary(f"no answer within {limit.seconds:g} s")
    except asyncio.CancelledError as error:
        # A client that cancels itself would end this task without a word, and keep its lease.
        if _is_cancelled():
            raise
        return _bug(name, event, error)
    except Exception as error:  # noqa: BLE001
        return _bug(name, event, error)


def _storable(answer: Answer) -> Answer:
    """Leave out what is of another type than it should be.

    Where a client hands on what a far end wrote, no type is sure, and what the store can never take
    would be written again for ever.
    """
    if _is_code(answer.status) and _is_text(answer.excerpt):
        return answer
    return Answer(
        answer.status if _is_code(answer.status) else None,
        answer.excerpt if _is_text(answer.excerpt) else "",
    )


def _is_code(status: object) -> bool:
    return status is None or (isinstance(status, int) and abs(status) < 1 << 63)


def _is_text(excerpt: object) -> bool:
    return isinstance(excerpt, str)


def _bug(name: str, event: Event, error: BaseException) -> tuple[Answer, SinkError]:
    log.get().error("sink.bug", sink=name, id=event.id, **log.describe(error))
    return Answer(), Temporary(f"a bug in the sink: {type(error).__name__}")


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
