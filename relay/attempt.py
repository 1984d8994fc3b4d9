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
            return await sink.send(event), None
    except SinkError as error:
        return Answer(error.status, error.answer), error
    except TimeoutError:
        return Answer(), Temporary(f"no answer within {limit.seconds:g} s")
    except asyncio.CancelledError as error:
        # A client that cancels itself would end this task without a word, and keep its lease.
        if _is_cancelled():
            raise
        return _bug(name, event, error)
    except Exception as error:  # noqa: BLE001
        return _bug(name, event, error)


def _bug(name: str, event: Event, error: BaseException) -> tuple[Answer, SinkError]:
    log.get().error("sink.bug", sink=name, id=event.id, **log.describe(error))
    return Answer(), Temporary(f"a bug in the sink: {type(error).__name__}")


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
