"""Log format and allowed fields: an unlisted field is dropped, so it cannot leak."""

import contextlib
import logging
import os
import sys
import threading
import traceback
import warnings
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Literal, TextIO, cast

import msgspec
import orjson
import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

from relay.core.clock import Clock, SystemClock
from relay.telemetry import line_buffer

Level = Literal["debug", "info", "warning", "error"]

FIELDS = (
    *("timestamp", "level", "event"),
    *("source", "id", "kind", "outcome", "code", "reason", "request_id", "client", "skew_s"),
    *("sink", "attempt", "status", "result", "state", "previous"),
    *("duration_ms", "lag_ms", "due_ms"),
    *("pending", "dead", "count", "seconds", "lost_s", "bytes", "free_bytes", "suppressed"),
    *("path", "file", "key", "faults", "listen", "admin_listen", "sources", "sinks"),
    *("added", "changed", "removed"),
    *("operation", "target", "asked", "counts", "actor", "replay"),
    *("run", "dry_run", "events", "unknown", "left", "erased"),
    *("version", "revision", "python", "sqlite", "pid", "signal", "advice"),
    *("error", "cause", "trace", "logger", "message"),
)
"""All allowed fields, in the order of a line."""

VALUE_MAX = 500
"""Maximum length of a text field, in characters."""

TRACE_FRAMES = 8

# Their messages are constant texts; messages of other libraries may hold any data.
_LITERAL_LOGGERS = frozenset({"relay", "uvicorn", "asyncio", "aiohttp", "httpx", "aiosqlite"})


class LogSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[log]`: format and level."""

    format: Literal["json", "console"] = "json"
    level: Level = "info"


def configure(settings: LogSettings, *, clock: Clock | None = None) -> None:
    """Send the relay's lines and the libraries' warnings to stderr."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _allow,
            *_renderers(settings.format, sys.stderr),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(settings.level),
        logger_factory=partial(_Output, sys.stderr.buffer),
        cache_logger_on_first_use=False,
    )
    if (buffer := line_buffer.find(sys.stderr)) is not None:
        buffer.report = _report_dropped
    root = logging.getLogger()
    root.handlers = [_Bridge(clock or SystemClock())]
    root.setLevel(logging.WARNING)
    warnings.showwarning = _showwarning


def lines_dropped() -> int:
    """Return how many lines were not written, because they were not read or a write failed."""
    buffer = line_buffer.find(sys.stderr)
    return 0 if buffer is None else buffer.dropped


def drain() -> None:
    """Wait for a short time until the lines are written, for a process that ends at once."""
    line_buffer.drain(sys.stderr)


def get() -> FilteringBoundLogger:
    """Return a logger; event names are lower-case, `subject.event`."""
    return cast("FilteringBoundLogger", structlog.get_logger())


def describe(error: BaseException) -> dict[str, str]:
    """Return the fields of an exception: type and place, never its text."""
    fields = {"error": _type_name(error), "trace": _trace(error)}
    if error.__cause__ is not None:
        fields["cause"] = _type_name(error.__cause__)
    return fields


class Sampled:
    """Limits repeated lines to `limit` per window, event and reason, then logs the number dropped.

    Thread-safe.
    """

    def __init__(self, clock: Clock, *, limit: int = 10, window_s: float = 60.0) -> None:
        self._clock = clock
        self._limit = limit
        self._window_s = window_s
        self._windows: dict[tuple[str, str], _Window] = {}
        # Reentrant, because the garbage collector may run code that logs at any moment.
        self._lock = threading.RLock()

    def line(self, event: str, *, reason: str, level: Level = "warning", **fields: Any) -> None:
        """Write the line, or count it if the limit is reached."""
        now_s = self._clock.monotonic()
        with self._lock:
            self._close(now_s)
            window = self._windows.setdefault((event, reason), _Window(now_s))
            window.lines += 1
            if window.lines > self._limit:
                return
        _write(level, event, reason=reason or None, **fields)

    def _close(self, now_s: float) -> None:
        # The dict keeps windows in the order of their start.
        while self._windows:
            (event, reason), window = next(iter(self._windows.items()))
            if window.started_s > now_s - self._window_s:
                return
            self._windows.pop((event, reason), None)
            if window.lines > self._limit:
                suppressed = window.lines - self._limit
                _write("warning", event, reason=reason or None, suppressed=suppressed)


class _Window(msgspec.Struct):
    started_s: float
    lines: int = 0


class _Bridge(logging.Handler):
    """Converts the libraries' log records to the relay's lines."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(logging.WARNING)
        self._sampled = Sampled(clock)

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        place = f"{Path(record.pathname).name}:{record.lineno} {record.funcName}"
        self._sampled.line(
            "library.message",
            reason=place,
            level="error" if record.levelno >= logging.ERROR else "warning",
            logger=record.name,
            message=_template(record),
            **(describe(error) if error is not None else {}),
        )


class _Output:
    """The end of structlog's chain; a failed write is ignored, so that it fails no request.

    It takes no lock, unlike structlog's own: the garbage collector may run code that logs at any
    moment, also during a write.
    """

    def __init__(self, file: BinaryIO, *_: object) -> None:
        self._file = file

    def _line(self, line: bytes) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._file.write(line + b"\n")
            self._file.flush()

    debug = info = warning = error = _line


def _report_dropped(count: int) -> None:
    _write("warning", "log.dropped", count=count, advice=_ADVICE_DROPPED)


def _write(level: Level, event: str, **fields: Any) -> None:
    getattr(get(), level)(event, **fields)


def _renderers(form: Literal["json", "console"], stream: TextIO) -> list[Processor]:
    if form == "json":
        return [structlog.processors.JSONRenderer(serializer=orjson.dumps)]
    colours = stream.isatty() and not os.environ.get("NO_COLOR")  # https://no-color.org
    return [structlog.dev.ConsoleRenderer(colors=colours), _encoded]


def _encoded(_: WrappedLogger, __: str, line: Any) -> bytes:
    return cast("str", line).encode()


def _allow(_: WrappedLogger, __: str, fields: EventDict) -> EventDict:
    return {name: _clean(fields[name]) for name in FIELDS if fields.get(name) is not None}


def _clean(value: object) -> str | int | float | None:
    match value:
        case str():
            text = value if value.isprintable() else "".join(filter(str.isprintable, value))
            return text if len(text) <= VALUE_MAX else text[: VALUE_MAX - 1] + "…"
        case None | bool() | float():
            return value
        case int():
            return value if abs(value) < 1 << 63 else str(value)[:VALUE_MAX]
        case list() | tuple():
            return _clean(", ".join(str(_clean(item)) for item in value))
        case BaseException():
            return _type_name(value)
        case _:
            # Its text may hold any data.
            return type(value).__name__


def _type_name(error: BaseException) -> str:
    name = type(error).__name__
    if isinstance(error, BaseExceptionGroup):
        return f"{name}({', '.join(_type_name(nested) for nested in error.exceptions)})"
    return name


def _trace(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    frames = traceback.StackSummary.extract(
        traceback.walk_tb(error.__traceback__), lookup_lines=False
    )
    return " > ".join(
        f"{Path(frame.filename).name}:{frame.lineno} {frame.name}"
        for frame in frames[-TRACE_FRAMES:]
    )


def _template(record: logging.LogRecord) -> str | None:
    known = record.name.partition(".")[0] in _LITERAL_LOGGERS
    if not known or not isinstance(record.msg, str):
        return None
    # asyncio appends a callback's arguments in parentheses.
    return record.msg.partition("\n")[0].partition("(")[0]


def _showwarning(  # noqa: PLR0917 - as `warnings` calls it
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Replacement for `warnings.showwarning`, without the text, which may hold any data."""
    del message, file, line
    place = f"{Path(filename).name}:{lineno}"
    _write("warning", "library.warning", error=category.__name__, trace=place)


_ADVICE_DROPPED = (
    "the log was not read for a while, or could not be written, and these lines are missing here; "
    "look at what reads it: the journal, the container runtime, the pipe"
)
