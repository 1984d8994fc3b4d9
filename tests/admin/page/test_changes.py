"""The list of changes on a running relay."""

import csv
import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock
from urllib.parse import quote

import pytest

from relay.admin.api import OPERATIONS
from relay.admin.page import visit
from relay.admin.page.views.changes import descriptions
from relay.core.clock import Instant
from relay.core.minutes import HOUR_MS
from relay.store.audit import Change, ChangeRecord
from tests import service
from tests.admin.page.visiting import ADMIN, VIEWER_TOKEN, Visitor, visiting
from tests.admin.test_api import body, send
from tests.core.test_clock import SettableClock
from tests.operator import operating
from tests.service import Relay
from tests.stub_server import Reply, StubServer

ADA = "ada.secret@example.com"
HIDDEN = (ADA, "ada.secret", "lovelace", "at 127.0.0.1", "person:")
NONE = "\N{EN DASH}"
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>\u202egpj"


def read(folder: Path, destination: StubServer | None = None) -> Any:
    return service.read(folder, tables=ADMIN, destination=destination)


async def record(
    relay: Relay,
    operation: str,
    *,
    status: int | None = 200,
    at_ms: int | None = None,
    result: dict[str, Any] | None = None,
    **change: Any,
) -> int:
    """Write a row as the auditor does; without a status, the change is left unfinished."""
    audit, clock = relay.service._store.audit, relay.service._clock
    made = audit.pseudonymized(Change(operation=operation, **change))
    number = await audit.begin(made, now_ms=clock.now_ms() if at_ms is None else at_ms)
    if status is not None:
        await audit.end(number, status=status, result=result or {}, now_ms=clock.now_ms())
    return number


def test_every_audited_operation_has_a_description() -> None:
    audited = {each.name for each in OPERATIONS if each.is_audited}
    assert set(descriptions.OPERATIONS) == audited


async def test_changes_are_listed_in_words_with_their_results(tmp_path: Path) -> None:
    async with StubServer() as destination, service.serving(read(tmp_path, destination)) as relay:
        async with operating(relay) as operator:
            await send(relay, body("a"), body("b"))
            await relay.until_counted("relay_deliveries_total", "delivered", "leads", value=2)
            operator.client.headers["user-agent"] = "curl/8"
            await operator.post("/sinks/leads/pause")
            await operator.post("/replays", {"sink": "all", "all": True})
            await operator.post("/sinks/nobody/pause", status=404)
        async with visiting(relay) as visitor:
            page = await visitor.see("/changes")
    assert [row[:3] for row in page.rows()] == [
        ["Pause nobody", "refused status 404", NONE],
        ["Started a replay sink all · all yes", "done", "2 deliveries"],
        ["Paused leads", "done", NONE],
    ]
    assert {row[3] for row in page.rows()} == {"admin token curl/8 at 127.0.0.1"}
    assert page.by_id("rows")["data-hold"] == "auto"


async def test_a_sample_that_is_refused_is_not_called_sent(
    destination: StubServer, relay: Relay, visitor: Visitor
) -> None:
    destination.reply = lambda _: Reply(422)
    async with operating(relay) as operator:
        assert not (await operator.post("/sinks/leads/sample", {}))["reached"]
    (row,) = (await visitor.see("/changes")).rows()
    assert row[:2] == ["Tried a sample on leads", "done"]


async def test_changes_tell_how_they_ended(tmp_path: Path) -> None:
    async with service.serving(read(tmp_path)) as relay, visiting(relay) as visitor:
        await record(relay, "erase_person", status=None, at_ms=1)
        await record(relay, "pause_sink", status=None, target="a")
        await record(relay, "retry_sink", status=503, target="a")
        await record(relay, "reload_config", result={"added": ["sink.x"]}, via="SIGHUP")
        await record(relay, "a_newer_thing")
        page = await visitor.see("/changes")
    assert [(row[0], row[1], row[3]) for row in page.rows()] == [
        ("A newer thing", "done", "the relay itself unknown program"),
        ("Reloaded the config added sink.x", "done", "the relay itself SIGHUP"),
        ("Retry a at once", "failed status 503", "the relay itself unknown program"),
        ("Pause a", "running", "the relay itself unknown program"),
        ("Erase a person's data", "cut off", "the relay itself unknown program"),
    ]


@pytest.mark.parametrize("set_by_ms", [-HOUR_MS, HOUR_MS])
def test_a_change_runs_on_when_the_clock_is_set(set_by_ms: int) -> None:
    clock = SettableClock()
    visitor = cast("Any", SimpleNamespace(admin=SimpleNamespace(started=Instant(clock))))

    def begun_now() -> ChangeRecord:
        return ChangeRecord(
            operation="erase_person",
            id=1,
            begun_ms=clock.now_ms(),
            ended_ms=None,
            status=None,
            result={},
        )

    before = begun_now()
    clock.set_by_ms = set_by_ms
    for change in (before, begun_now()):
        assert descriptions.state_of(visitor, change) == "running"


async def test_changes_are_filtered_by_operation_and_time(relay: Relay, visitor: Visitor) -> None:
    await record(relay, "pause_sink", target="old", at_ms=1_700_000_000_000)
    await record(relay, "pause_sink", target="new")
    await record(relay, "resume_sink", target="new")

    async def names(query: str) -> list[str]:
        page = await visitor.see(f"/changes{query}")
        return [row[0] for row in page.rows()]

    assert await names("?operation=pause_sink&since=&until=") == ["Paused new", "Paused old"]
    assert await names("?since=2h") == ["Resumed new", "Paused new"]
    assert await names("?until=2024-01-01") == ["Paused old"]
    assert await names("?operation=resume_sink&until=2024-01-01") == []
    page = await visitor.see("/changes?operation=resume_sink&until=2024-01-01")
    assert page.by_id("none").text == "No change matches this filter."
    (option,) = (each for each in page.all("option") if "selected" in each.attributes)
    assert option["value"] == "resume_sink"


async def test_pages_of_changes_follow_one_another(relay: Relay, visitor: Visitor) -> None:
    for number in range(5):
        await record(relay, "pause_sink", target=f"s{number}")
    page = await visitor.see("/changes?limit=2&operation=pause_sink")
    seen = [row[0] for row in page.rows()]
    while "Older" in page.links():
        page = await visitor.see(page.links()["Older"])
        assert page.by_id("rows")["data-hold"] == "always" if page.has_id("rows") else True
        seen += [row[0] for row in page.rows()]
    assert seen == [f"Paused s{number}" for number in (4, 3, 2, 1, 0)]
    assert page.links()["Newest"] == "/changes?limit=2&operation=pause_sink"


async def test_the_file_has_all_pages_of_the_filter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visit, "PAGE_MAX", 1)
    async with service.serving(read(tmp_path)) as relay, visiting(relay) as visitor:
        await record(relay, "resume_sink", target="s")
        for _ in range(12):
            await record(relay, "pause_sink", target="=cmd()", actor="admin", via="page")
        page = await visitor.see("/changes?operation=pause_sink")
        answer = await visitor.client.get(page.links()["CSV"])
    assert answer.headers["content-type"].startswith("text/csv")
    head, *rows = csv.reader(io.StringIO(answer.text))
    assert len(rows) == 12
    row = dict(zip(head, rows[0], strict=True))
    assert (row["change"], row["target"]) == ("Paused =cmd()", "'=cmd()")
    assert (row["result"], row["by"], row["via"]) == ("done", "admin token", "this page")


async def test_head_of_a_table_reads_its_first_rows_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visit, "PAGE_MAX", 2)
    async with service.serving(read(tmp_path)) as relay, visiting(relay) as visitor:
        for _ in range(7):
            await record(relay, "pause_sink", target="s")
        audit = relay.service._store.audit
        newest = AsyncMock(wraps=audit.newest)
        monkeypatch.setattr(audit, "newest", newest)
        got = await visitor.client.get("/changes.csv")
        reads = newest.await_count
        head = await visitor.client.head("/changes.csv")
        refused = await visitor.client.head("/changes.csv?since=never")
    assert (reads, newest.await_count - reads) == (4, 1)
    assert (head.status_code, head.content) == (got.status_code, b"")
    for name in ("content-type", "content-disposition", "cache-control"):
        assert head.headers[name] == got.headers[name]
    assert refused.status_code == 400


@pytest.mark.parametrize(("wiped", "text"), [(True, "overwritten"), (False, "not overwritten yet")])
async def test_an_erasure_says_whether_the_removed_data_is_overwritten(
    relay: Relay, visitor: Visitor, *, wiped: bool, text: str
) -> None:
    await record(relay, "erase_person", result={"events": 2, "pending": 0, "wiped": wiped})
    page = await visitor.see("/changes")
    assert page.rows()[0][:3] == [
        f"Erased a person's data removed data {text}",
        "done",
        "2 events",
    ]


async def test_viewers_see_neither_persons_nor_addresses(tmp_path: Path) -> None:
    async with service.serving(read(tmp_path)) as relay:
        async with operating(relay) as operator:
            operator.client.headers["user-agent"] = f"curl ({ADA})"
            await operator.post("/people/erase", {"email": ADA})
            await operator.post("/replays", {"words": "ada lovelace", "sink": "x"}, status=404)
        async with visiting(relay, token=VIEWER_TOKEN) as viewer:
            for path in ("/changes", "/changes.csv", "/"):
                answer = await viewer.client.get(path)
                assert answer.status_code == 200
                assert not [each for each in HIDDEN if each in answer.text.lower()]
            page = await viewer.see("/changes")
            assert "words hidden" in page.rows()[0][0]
            assert page.rows()[1][0].startswith("Erased a person's data email hidden")
            assert page.rows()[1][3] == "admin token curl ((person hidden))"
        async with visiting(relay) as visitor:
            page = await visitor.see("/changes")
            assert "person:" in page.rows()[1][0]
            assert "ada lovelace" in page.rows()[0][0]


async def test_hostile_texts_of_changes_stay_text(relay: Relay, visitor: Visitor) -> None:
    await record(
        relay,
        "pause_sink",
        target=HOSTILE,
        asked={HOSTILE: HOSTILE, "reason": HOSTILE},
        via=HOSTILE,
        address=HOSTILE,
        actor=HOSTILE,
        result={"x": 1},
    )
    await record(relay, "reload_config", result={"added": [HOSTILE]})
    for path in ("/changes", "/"):
        page = await visitor.see(path)
        assert [each["src"] for each in page.all("script")] != []
        assert all("src" in each.attributes for each in page.all("script"))
        assert page.all("img") == []
        assert "\u202e" not in visitor.html
    page = await visitor.see("/changes")
    assert "<script>alert(1)</script>" in page.rows()[1][0]
    page = await visitor.see(f"/changes?operation={quote(HOSTILE)}")
    assert page.all("img") == []


@pytest.mark.parametrize(
    "query", ["?since=yesterdayish", "?until=x", "?before=x", "?limit=0", "?limit=501", "?what=1"]
)
@pytest.mark.parametrize("path", ["/changes", "/changes.csv"])
async def test_bad_parameters_get_a_page_with_the_fault(
    path: str, query: str, visitor: Visitor
) -> None:
    page = await visitor.see(f"{path}{query}", status=400)
    assert page.by_id("failed").text == "Bad Request"
    assert "Traceback" not in visitor.html


async def test_a_relay_without_changes_teaches_one(visitor: Visitor) -> None:
    page = await visitor.see("/changes")
    assert "relay reload" in page.by_id("none").text
    assert "CSV" not in page.links()
