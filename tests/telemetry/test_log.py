"""A log line holds only allowed fields, whichever code wrote it."""

import ast
import asyncio
import io
import logging
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import structlog

import relay
from relay.telemetry import log
from relay.telemetry.log import LogSettings, Sampled
from tests.conftest import ManualClock

LOG_CALL = re.compile(
    r"(log|sampled|log\.get\(\))\.(bind|debug|info|warning|error|exception|line)$"
    r"|^getattr\(.*log, .*\)$"
)
Lines = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def stderr() -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8")


def configure(
    settings: LogSettings, stderr: io.TextIOWrapper, clock: ManualClock | None = None
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stderr", stderr)
        log.configure(settings, clock=clock)


@pytest.fixture
def lines(stderr: io.TextIOWrapper, clock: ManualClock, untouched: None) -> Lines:
    del untouched
    configure(LogSettings(level="debug"), stderr, clock)
    buffer = stderr.buffer
    assert isinstance(buffer, io.BytesIO)
    return lambda: [orjson.loads(line) for line in buffer.getvalue().splitlines()]


@pytest.fixture
def untouched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", root.handlers)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    level = root.level
    yield
    root.setLevel(level)
    structlog.reset_defaults()


def test_a_line_is_json_with_time_level_and_event_first(lines: Lines) -> None:
    log.get().info("delivery.delivered", sink="crm", id="evt_1", attempt=2)
    (line,) = lines()
    assert list(line) == ["timestamp", "level", "event", "id", "sink", "attempt"]
    assert line["timestamp"].endswith("Z")
    assert (line["level"], line["event"]) == ("info", "delivery.delivered")
    assert (line["id"], line["sink"], line["attempt"]) == ("evt_1", "crm", 2)


def test_an_unlisted_field_is_dropped(lines: Lines) -> None:
    bound = log.get().bind(token="sec.ret")
    bound.warning("x.y", body=b"sec.ret", email="sec.ret", source="main")
    (line,) = lines()
    assert line == {"timestamp": line["timestamp"], "level": "warning", "event": "x.y"} | {
        "source": "main"
    }


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("a\r\nb\x00\u2028c\u202ed\ud800e", "abcde"),
        ("x" * 600, "x" * 499 + "…"),
        ("Ünïcode", "Ünïcode"),
        (7, 7),
        (1 << 80, str(1 << 80)),
        (0.5, 0.5),
        (True, True),
        (["a\n", 2], "a, 2"),
        (b"sec.ret", "bytes"),
        ({"k": "sec.ret"}, "dict"),
        (ValueError("sec.ret"), "ValueError"),
    ],
)
def test_values_are_plain_short_and_on_one_line(
    lines: Lines, value: object, written: object
) -> None:
    log.get().info("x.y", reason=value)
    assert lines()[0]["reason"] == written


def test_a_field_without_a_value_is_left_out(lines: Lines) -> None:
    log.get().info("x.y", status=None, client="")
    assert "status" not in lines()[0]
    assert lines()[0]["client"] == ""


def test_an_exception_is_logged_by_type_and_place_never_by_text(lines: Lines) -> None:
    _fail_and_log()
    (line,) = lines()
    assert (line["error"], line["cause"]) == ("LookupError", "KeyError")
    assert line["trace"].startswith("test_log.py:")
    assert line["trace"].endswith(" _fail")
    assert "sec.ret" not in str(lines())


def test_a_group_of_exceptions_names_its_members() -> None:
    group = ExceptionGroup("sec.ret", [ValueError("sec.ret"), OSError("sec.ret")])
    assert log.describe(group)["error"] == "ExceptionGroup(ValueError, OSError)"


def test_lines_below_the_level_are_not_written(lines: Lines, stderr: io.TextIOWrapper) -> None:
    configure(LogSettings(level="warning"), stderr)
    log.get().info("x.y")
    log.get().warning("x.z")
    assert [line["event"] for line in lines()] == ["x.z"]


def test_the_console_format_is_readable(stderr: io.TextIOWrapper, untouched: None) -> None:
    del untouched
    configure(LogSettings(format="console"), stderr)
    log.get().info("relay.ready", listen="127.0.0.1:8080", token="sec.ret")
    stderr.seek(0)
    text = stderr.read()
    assert "relay.ready" in text
    assert "listen=127.0.0.1:8080" in text
    assert "sec.ret" not in text


def test_a_closed_stderr_raises_no_error(lines: Lines, stderr: io.TextIOWrapper) -> None:
    assert lines() == []
    stderr.buffer.close()
    log.get().info("x.y")


def test_a_librarys_warning_is_a_line_without_its_values(lines: Lines) -> None:
    logging.getLogger("uvicorn.error").warning("Invalid %s received.", "sec.ret")
    (line,) = lines()
    assert (line["event"], line["level"]) == ("library.message", "warning")
    assert line["logger"] == "uvicorn.error"
    assert line["message"] == "Invalid %s received."
    assert line["reason"].startswith("test_log.py:")


def test_a_message_that_may_hold_values_is_left_out(lines: Lines) -> None:
    logging.getLogger("some.broker").error("cannot reach user:sec.ret@host")
    logging.getLogger("uvicorn.error").error(ValueError("sec.ret"))
    logging.getLogger("asyncio").error("Exception in callback send('sec.ret')\nhandle: sec.ret")
    messages = [line.get("message") for line in lines()]
    assert messages == [None, None, "Exception in callback send"]
    assert "sec.ret" not in str(lines())


def test_a_librarys_exception_is_logged_by_type_and_place(lines: Lines) -> None:
    try:
        _fail()
    except LookupError:
        logging.getLogger("uvicorn.error").exception("Exception in ASGI application\n")
    (line,) = lines()
    assert (line["level"], line["error"]) == ("error", "LookupError")
    assert line["message"] == "Exception in ASGI application"
    assert "sec.ret" not in str(line)


def test_library_lines_below_warning_are_not_written(lines: Lines) -> None:
    logging.getLogger("httpx").info("HTTP Request: %s", "https://sec.ret")
    logging.getLogger("aiosqlite").debug("executing %s", "sec.ret")
    assert lines() == []


def test_a_python_warning_is_logged_by_category(lines: Lines) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning("sec.ret", ResourceWarning, "/srv/app/module.py", 12)
    (line,) = lines()
    assert (line["event"], line["error"]) == ("library.warning", "ResourceWarning")
    assert line["trace"] == "module.py:12"


async def test_the_exception_of_a_lost_task_is_logged_without_its_text(lines: Lines) -> None:
    loop = asyncio.get_running_loop()
    error = ValueError("sec.ret")
    loop.default_exception_handler(
        {"message": "Task exception was never retrieved", "exception": error, "task": "sec.ret"}
    )
    (line,) = lines()
    assert (line["message"], line["error"]) == ("Task exception was never retrieved", "ValueError")
    assert "sec.ret" not in str(line)


def test_repeating_lines_are_limited_and_the_rest_is_counted(
    lines: Lines, clock: ManualClock
) -> None:
    sampled = Sampled(clock, limit=2, window_s=60)
    for _ in range(5):
        sampled.line("request.refused", reason="stale", source="main")
    assert [line["reason"] for line in lines()] == ["stale", "stale"]
    clock.ms += 60_000
    sampled.line("request.refused", reason="mismatch", source="main")
    assert lines()[2]["suppressed"] == 3
    assert lines()[2]["reason"] == "stale"
    assert "suppressed" not in lines()[3]


def test_each_event_and_reason_has_its_own_limit(lines: Lines, clock: ManualClock) -> None:
    sampled = Sampled(clock, limit=1)
    for reason in ("stale", "future", "stale"):
        sampled.line("request.refused", reason=reason)
    sampled.line("request.odd", reason="stale")
    assert len(lines()) == 3


def test_a_window_within_the_limit_reports_nothing(lines: Lines, clock: ManualClock) -> None:
    sampled = Sampled(clock, limit=1, window_s=1)
    for _ in range(3):
        sampled.line("request.refused", reason="stale")
        clock.ms += 1_000
    assert len(lines()) == 3
    assert "suppressed" not in str(lines())


def test_a_repeating_library_message_is_limited(lines: Lines) -> None:
    for _ in range(50):
        logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
    assert len(lines()) == 10


def test_every_field_that_the_code_logs_is_allowed() -> None:
    package = Path(relay.__file__).parent
    logged = {
        keyword.arg
        for file in package.rglob("*.py")
        for call in ast.walk(ast.parse(file.read_text()))
        if isinstance(call, ast.Call) and LOG_CALL.search(ast.unparse(call.func))
        for keyword in call.keywords
        if keyword.arg is not None
    }
    assert logged - set(log.FIELDS) == set()
    assert "source" in logged


def _fail() -> None:
    raise LookupError("sec.ret") from KeyError("sec.ret")


def _fail_and_log() -> None:
    try:
        _fail()
    except LookupError as error:
        log.get().error("x.failed", **log.describe(error))
