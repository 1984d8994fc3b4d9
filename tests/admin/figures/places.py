"""Reads every figure of a relay from its page, its API, its commands, its metrics and its store."""

import asyncio
import csv
import math
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from relay.cli import main
from relay.core.event import MILESTONES
from relay.core.sink_status import Flow, outlook_of, rate
from relay.core.units import deviation, duration, size
from tests.admin.figures.book import Age, Book, Figure, Moment
from tests.admin.page.document import Element
from tests.admin.page.visiting import Visitor, visiting
from tests.operator import TOKEN, Operator, operating
from tests.service import Relay

Rows = Callable[..., list[tuple[Any, ...]]]
"""Runs SQL in which tables are named `relay.events`."""

WIDE = "1000"
"""Columns of the terminal: a table never becomes pairs."""

HOUR_MS = 3_600_000

NONE = "\N{EN DASH}"
"""Of the page, where there is nothing to say."""

OF_PROCESS = ("started", "away", "median", "clock", "verified", "store bytes")
"""Figures that each relay has of its own."""


@dataclass(frozen=True)
class Place:
    """One place that says figures, and the book in which it is noted."""

    name: str
    book: Book
    relay: str
    clock: Callable[[], int]
    from_ms: int

    def say(self, figure: Figure, said: Any) -> None:
        of_relay = (self.relay,) if self.relay and figure[0] in OF_PROCESS else ()
        self.book.say(f"{self.relay} {self.name}".strip(), (*figure, *of_relay), said)

    def when(self, figure: Figure, ms: int | None) -> None:
        self.say(figure, Moment(ms))

    def age(self, figure: Figure, text: str) -> None:
        self.say(figure, Age(text, self.from_ms, self.clock()))

    def time(self, figure: Figure, element: Element) -> None:
        """Note the time in an element: exact in the markup, and as people read it."""
        times = element.all("time")
        if not times:
            self.when(figure, None)
            return
        (time, *_) = times
        self.when(figure, round(datetime.fromisoformat(time["datetime"]).timestamp() * 1000))
        if "data-relative" in time.attributes:
            self.age(figure, time.text)


@dataclass(frozen=True)
class Reader:
    """Reads one relay into a book."""

    relay: Relay
    book: Book
    name: str = ""
    """Tells several relays apart."""

    def place(self, name: str) -> Place:
        clock = self.relay.service._clock.now_ms
        return Place(name, self.book, self.name, clock, clock())

    async def read(self, rows: Rows) -> None:
        """Read all places."""
        await self.relay.service._maintenance.show_gauges()
        async with operating(self.relay) as operator, visiting(self.relay) as visitor:
            sinks = await Api(self, operator).read()
            await Page(self, visitor).read(sinks)
            await Commands(self).read(sinks)
        await self._read_metrics()
        read_sql(self.place("SQL"), rows)

    async def _read_metrics(self) -> None:
        place, text = self.place("metrics"), await self.relay.metrics()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                _metric(place, sample.name, sample.labels, sample.value)


COUNTS: Mapping[str, tuple[str, ...]] = {
    "relay_pending_deliveries": ("sink", "{sink}", "pending"),
    "relay_dead_letters": ("sink", "{sink}", "dead"),
    "relay_leads_captured_total": ("new leads", "{source}"),
    "relay_video_watched_total": ("new views", "{source}", "{milestone}"),
    "relay_quarantined_requests": ("rotation", "{source}", "waiting"),
}
MOMENTS: Mapping[str, tuple[str, ...]] = {
    "relay_oldest_pending_timestamp_seconds": ("sink", "{sink}", "oldest"),
    "relay_sink_state_timestamp_seconds": ("sink", "{sink}", "since"),
    "relay_last_event_timestamp_seconds": ("last", "{source}", "{event}"),
}
DURATIONS: Mapping[str, tuple[str, ...]] = {
    "relay_downtime_seconds": ("away",),
    "relay_unacknowledged_loss_seconds": ("lost",),
}


def _metric(place: Place, name: str, labels: Mapping[str, str], value: float) -> None:
    def figure(parts: Sequence[str]) -> Figure:
        return tuple(part.format(**labels) for part in parts)

    if name in COUNTS:
        place.say(figure(COUNTS[name]), value)
    elif name in MOMENTS and (value or "sink" in labels):
        place.when(figure(MOMENTS[name]), round(value * 1000) or None)
    elif name in DURATIONS:
        place.say(figure(DURATIONS[name]), duration(value * 1000))
    elif name == "relay_sink_state" and value:
        place.say(("sink", labels["sink"], "state"), labels["state"])
    elif name == "relay_backlog_flow_per_second":
        shown = NONE if math.isnan(value) else rate(value * 60)
        place.say(("sink", labels["sink"], labels["direction"]), shown)
    elif name == "relay_store_bytes":
        place.say(("store bytes",), size(value))


class Api:
    """The admin API."""

    def __init__(self, reader: Reader, operator: Operator) -> None:
        self._reader = reader
        self._operator = operator

    async def read(self) -> list[str]:
        """Read all operations; return the names of the sinks."""
        get = self._operator.get
        status = self._reader.place("API /status"), await get("/status")
        _status(*status)
        sinks = await get("/sinks")
        place = self._reader.place("API /sinks")
        for each in sinks["sinks"]:
            _sink(place, {"name": each["condition"]["name"], **each}, status[1]["now_ms"])
        await self._statistics(names := [each["condition"]["name"] for each in sinks["sinks"]])
        await self._lists()
        await self._audience()
        return names

    async def _statistics(self, sinks: Sequence[str]) -> None:
        get, place = self._operator.get, self._reader.place("API /statistics")
        minutes = (await get("/statistics/minutes"))["minutes"]
        for name in ("accepted", "delivered", "failed"):
            place.say(("hour", name), sum(each[name] for each in minutes))
        acceptance = await get("/statistics/acceptance")
        place.say(("last minute",), acceptance["last_minute"])
        place.say(("median",), _seconds(acceptance["median_s"]))
        place.when(("last event",), acceptance["last_ms"])
        for sink in sinks:
            now_ms = self._reader.relay.service._clock.now_ms()
            attempts = await get(f"/sinks/{sink}/attempts", since_ms=now_ms - 24 * HOUR_MS)
            for each in attempts["results"]:
                place.say(("attempts", sink, each["result"]), each["count"])
            for each in attempts["failures"]:
                figure = "failures", sink, each["reason"]
                place.say((*figure, "count"), each["count"])
                place.when((*figure, "first"), each["first_ms"])
                place.when((*figure, "last"), each["last_ms"])

    async def _lists(self) -> None:
        get, place = self._operator.get, self._reader.place("API")
        await self._events(place)
        for each in (await get("/absences"))["absences"]:
            _absence(place, each)
        for each in (await get("/replays"))["replays"]:
            _replay(place, each)
        for each in (await get("/reconciliations"))["reconciliations"]:
            run = "reconciliation", str(each["id"])
            place.say((*run, "report"), "; ".join(each["words"]))
            place.when((*run, "begun"), each["begun_ms"])
        for each in (await get("/audit", limit=500))["changes"]:
            place.when(("change", str(each["id"])), each["begun_ms"])
        for source in ("main", "other"):
            _rotation(place, await get(f"/sources/{source}/rotation"))
        for each in (await get("/people/erasures"))["erasures"]:
            erasure = "erasure", str(each["id"])
            place.when((*erasure, "begun"), each["begun_ms"])
            place.say((*erasure, "events"), each["erasure"]["events"])

    async def _events(self, place: Place) -> None:
        get = self._operator.get
        place.say(("events",), (await get("/events/count"))["events"])
        for outcome in ("dead", "pending", "delivered"):
            count = await get("/events/count", outcome=outcome)
            place.say(("events", outcome), count["events"])
        reasons = (await get("/dead-letters/reasons"))["reasons"]
        place.say(("dead",), sum(each["count"] for each in reasons))
        for each in reasons:
            _reason(place, each)
        for each in (await get("/dead-letters", limit=500))["dead_letters"]:
            letter = "dead letter", each["sink"], each["id"]
            place.say((*letter, "attempts"), each["attempts"])
            place.when((*letter, "died"), each["settled_ms"])
            place.when((*letter, "received"), each["received_ms"])
        reasons = (await get("/unreadable/reasons"))["reasons"]
        place.say(("unreadable",), sum(each["count"] for each in reasons))

    async def _audience(self) -> None:
        place = self._reader.place("API /audience")
        report = await self._operator.get("/audience")
        _funnel(place, report)


def _status(place: Place, status: Mapping[str, Any]) -> None:
    now_ms = status["now_ms"]
    for each in status["sinks"]:
        _sink(place, each, now_ms)
    place.say(("pending",), sum(each["pending"] for each in status["sinks"]))
    place.say(("dead",), sum(each["dead"] for each in status["sinks"]))
    oldest = [each["oldest_pending_ms"] for each in status["sinks"] if each["oldest_pending_ms"]]
    place.when(("oldest",), min(oldest, default=None))
    place.when(("started",), status["started_ms"])
    place.say(("unreadable",), status["store"]["unreadable"])
    place.say(("store bytes",), size(status["store"]["disk"]["store_bytes"]))
    place.say(("lost",), duration(status["unacknowledged_loss_ms"]))
    downtime = status["downtime"]
    away_ms = 0 if downtime is None else downtime["to_ms"] - downtime["from_ms"]
    place.say(("away",), duration(away_ms))
    for each in status["problems"]:
        figure = "problem", each["what"]
        place.say(figure, "is named")
        place.when((*figure, "since"), each["since_ms"])
    skews = [each["traffic"]["skew_s"] for each in status["sources"]]
    skew_s = max((each for each in skews if each is not None), key=abs, default=None)
    place.say(("clock",), NONE if skew_s is None else deviation(skew_s))
    for source in status["sources"]:
        skew_s = source["traffic"]["skew_s"]
        place.say(("clock", source["name"]), NONE if skew_s is None else deviation(skew_s))
        place.when(("verified", source["name"]), source["traffic"]["verified_ms"])
        for each in source["last_events"]:
            place.when(("last", source["name"], each["kind"]), each["at_ms"])


def _sink(place: Place, sink: Mapping[str, Any], now_ms: int) -> None:
    figure = "sink", sink["name"]
    condition = sink["condition"] or {"state": "not configured"}
    still_ms, flow = condition.get("stands_still_since_ms"), condition.get("flow")
    place.say((*figure, "state"), condition["state"])
    place.when((*figure, "since"), condition.get("since_ms"))
    place.say((*figure, "pending"), sink["pending"])
    place.say((*figure, "dead"), sink["dead"])
    place.when((*figure, "oldest"), sink["oldest_pending_ms"])
    for name in ("in", "out"):
        per_minute = NONE if flow is None else rate(flow[f"{name}_per_minute"])
        place.say((*figure, name), per_minute)
    known = None if flow is None else Flow(**flow)
    outlook = outlook_of(
        condition["state"], still_ms, known, pending=sink["pending"], now_ms=now_ms
    )
    place.say((*figure, "done"), outlook)
    if condition["state"] != "not configured":
        place.say((*figure, "in flight"), condition["in_flight"])
        place.say((*figure, "last minute"), condition["delivered_last_minute"])
        place.when((*figure, "last delivered"), condition["last_delivered_ms"])
        place.when((*figure, "last error"), condition["last_error_ms"])


def _reason(place: Place, reason: Mapping[str, Any]) -> None:
    figure = "cause", reason["sink"], reason["reason"]
    place.say((*figure, "count"), reason["count"])
    place.when((*figure, "first"), reason["first_ms"])
    place.when((*figure, "last"), reason["last_ms"])


def _absence(place: Place, absence: Mapping[str, Any]) -> None:
    figure = "absence", str(absence["id"])
    place.say((*figure, "away"), duration(absence["to_ms"] - absence["from_ms"]))
    lacks = absence["lacks"]
    missed = "nothing" if lacks is None else duration(lacks["to_ms"] - lacks["from_ms"])
    place.say((*figure, "missed"), missed)


def _replay(place: Place, replay: Mapping[str, Any]) -> None:
    figure = "replay", str(replay["id"])
    for name in ("done", "total"):
        place.say((*figure, name), replay[name])
    place.say((*figure, "state"), replay["state"])
    place.when((*figure, "begun"), replay["created_ms"])


def _rotation(place: Place, rotation: Mapping[str, Any]) -> None:
    if rotation["state"] == "none":
        return
    for name in ("kept", "verified", "waiting", "duplicates", "dropped"):
        place.say(("rotation", rotation["source"], name), rotation[name])


def _funnel(place: Place, report: Mapping[str, Any]) -> None:
    for step in report["total"]:
        name = step["milestone"] or "lead"
        place.say(("people", name), step["people"])
        place.say(("funnel events", name), step["events"] + step["anonymous"])
    place.say(("forms",), report["total"][-1]["events"])
    for group in report["groups"]:
        for step in group["steps"]:
            name = step["milestone"] or "lead"
            place.say(("people", name, "of video", str(group["video"])), step["people"])


def _seconds(seconds: float | None) -> str:
    return NONE if seconds is None else duration(seconds * 1000)


class Page:
    """The operator's page."""

    def __init__(self, reader: Reader, visitor: Visitor) -> None:
        self._reader = reader
        self._visitor = visitor

    async def _see(self, path: str) -> tuple[Place, Element]:
        place = self._reader.place(f"page {path}")
        page = await self._visitor.see(path)
        place.say(("dead",), page.by_id("dead-count").text or "0")
        return place, page

    async def read(self, sinks: Sequence[str]) -> None:
        """Read every view."""
        self._now(*await self._see("/"))
        place, page = await self._see("/sinks")
        _sink_rows(place, page)
        for sink in sinks:
            self._sink(*await self._see(f"/sinks/{sink}"), sink)
        self._dead_letters(*await self._see("/dead-letters"))
        place, page = await self._see("/unreadable")
        place.say(("unreadable",), str(sum(int(row[2]) for row in page.all("table")[0].rows())))
        await self._events()
        self._audience(*await self._see("/audience?period=all"))
        await self._files()
        await self._lists()
        self._config(*await self._see("/config"))
        await self._rotation("other")

    def _now(self, place: Place, page: Element) -> None:
        shown = _vitals(page)
        place.say(("last minute",), _first(shown["In the last minute"]))
        place.time(("last event",), shown["In the last minute"][1])
        median = shown["Acknowledged in"][0].text.removesuffix(" median")
        place.say(("median",), median)
        place.say(("pending",), _first(shown["Waiting"]))
        place.time(("oldest",), shown["Waiting"][1])
        place.say(("dead",), _first(shown["Dead letters"]))
        place.say(("store bytes",), shown["Store"][0].text)
        place.age(("started",), shown["Running"][0].text)
        place.say(("clock",), shown["Clock"][0].text)
        away = re.search(r"away (.+) before that", shown["Running"][1].text)
        place.say(("away",), away[1] if away else duration(0))
        accepted, delivered = (page.by_id(f"chart-{each}") for each in ("accepted", "delivered"))
        place.say(("hour", "accepted"), accepted.all("b")[0].text)
        place.say(("hour", "delivered"), delivered.all("b")[0].text)
        failed = re.search(r"on top: ([\d,]+)", delivered.text)
        place.say(("hour", "failed"), failed and failed[1])
        _sink_rows(place, page)
        self._problems(place, page)
        for row in page.by_id("unacknowledged").all("tr") if page.has_id("unacknowledged") else ():
            self._absence(place, row)

    def _problems(self, place: Place, page: Element) -> None:
        verdict = page.by_id("verdict")
        first = verdict.by_id("verdict-text").text.partition(" for ")[0]
        others = verdict.all("li")
        for what in (first, *(item.all("b")[0].text for item in others)):
            if what != "All is well":
                place.say(("problem", what[0].lower() + what[1:]), "is named")
        for item in others:
            what = item.all("b")[0].text
            if item.all("time"):
                place.time(("problem", what[0].lower() + what[1:], "since"), item)

    def _sink(self, place: Place, page: Element, sink: str) -> None:
        figure, shown = ("sink", sink), _vitals(page)
        state = page.by_id("state")
        place.say((*figure, "state"), state.all("span", class_="st")[0].text)
        if " since " in f" {state.text}":
            since = state.all("time")
            ms = round(datetime.fromisoformat(since[0]["datetime"]).timestamp() * 1000)
            place.when((*figure, "since"), ms)
            place.age((*figure, "since"), since[1].text)
        place.say((*figure, "pending"), _first(shown["Pending"]))
        place.time((*figure, "oldest"), shown["Pending"][1])
        place.say((*figure, "done"), _lower(shown["When will it be done?"][0].text))
        place.say((*figure, "dead"), _first(shown["Dead letters"]))
        if "not configured" not in state.text:
            place.say((*figure, "in flight"), _first(shown["In flight"]))
            place.say((*figure, "last minute"), _first(shown["In the last minute"]))
            place.time((*figure, "last delivered"), shown["In the last minute"][1])
            place.time((*figure, "last error"), shown["Last error"][0])
            out = re.match(r"(\S+) a minute out, (\S+) in", shown["When will it be done?"][1].text)
            for name, value in zip(
                ("out", "in"), out.groups() if out else (NONE, NONE), strict=True
            ):
                place.say((*figure, name), value)
        for row in page.all("tr"):
            name, _, _ = (row.attributes.get("id") or "").partition("-")
            cells = row.all("td")
            if name == "result":
                place.say(("attempts", sink, cells[0].text), cells[1].text)
            elif name == "failure":
                reason = "failures", sink, cells[0].text
                place.say((*reason, "count"), cells[1].text)
                place.time((*reason, "first"), cells[2])
                place.time((*reason, "last"), cells[3])
        if page.has_id("spans") and (items := page.by_id("spans").all("li")):
            current = items[0].all("time")[0]
            ms = round(datetime.fromisoformat(current["datetime"]).timestamp() * 1000)
            if "unknown" not in items[0].text:
                place.when((*figure, "span since"), ms)

    def _dead_letters(self, place: Place, page: Element) -> None:
        place.say(("dead",), page.by_id("causes-total").text.split()[0])
        for row in page.all("tr"):
            id_, cells = row.attributes.get("id") or "", row.all("td")
            if id_.startswith("cause-"):
                figure = "cause", cells[0].text, cells[1].text
                place.say((*figure, "count"), cells[2].text)
                place.time((*figure, "first"), cells[3])
                place.time((*figure, "last"), cells[4])
            elif id_.startswith("dead-"):
                figure = (
                    "dead letter",
                    cells[2].text,
                    cells[0].all("span", class_="mono")[0]["title"],
                )
                place.say((*figure, "attempts"), cells[3].text)
                place.time((*figure, "died"), cells[4])
                place.time((*figure, "received"), cells[5])
        reasons = [
            row.all("td")[2].text
            for row in page.all("tr")
            if (row.attributes.get("id") or "").startswith("unreadable-reason-")
        ]
        place.say(("unreadable",), str(sum(int(each) for each in reasons)))

    async def _events(self) -> None:
        place, page = await self._see("/events?count=long")
        place.say(("events",), page.by_id("count").all("b")[0].text)
        for outcome in ("dead", "pending", "delivered"):
            place, page = await self._see(f"/events?outcome={outcome}&count=long")
            place.say(("events", outcome), page.by_id("count").all("b")[0].text)

    def _audience(self, place: Place, page: Element) -> None:
        for number, name in enumerate((*MILESTONES, "lead"), 1):
            row = page.by_id(f"step-{number}").all("td")
            place.say(("people", name), row[2].text)
        shown = _vitals(page, "figures")
        place.say(("people", "started"), shown["Viewers"][0].text)
        place.say(("people", "completed"), shown["Completed"][0].text)
        place.say(("people", "lead"), shown["Leads"][0].text)
        place.say(("forms",), shown["Leads"][1].text.split()[2])

    async def _files(self) -> None:
        place = self._reader.place("page /audience/funnel.csv")
        answer = await self._visitor.client.get("/audience/funnel.csv?period=all")
        for row in csv.DictReader(answer.text.splitlines()):
            place.say(("csv", *row.values()), "is there")
        place = self._reader.place("page /dead-letters.csv")
        answer = await self._visitor.client.get("/dead-letters.csv")
        letters = list(csv.DictReader(answer.text.splitlines()))
        place.say(("dead",), len(letters))
        for row in letters:
            figure = "dead letter", row["sink"], row["id"]
            place.say((*figure, "attempts"), int(row["attempts"]))

    def _absence(self, place: Place, row: Element) -> None:
        figure = "absence", row["id"].removeprefix("absence-")
        cells = row.all("td")
        place.say((*figure, "away"), cells[0].all("b")[0].text)
        missed = re.search(r"events of (.*?) first sent", cells[2].text)
        place.say((*figure, "missed"), missed[1] if missed else cells[2].text.split()[0])

    async def _lists(self) -> None:
        place, page = await self._see("/absences")
        for row in page.by_id("rows").all("tr"):
            self._absence(place, row)
        place, page = await self._see("/replays")
        for row in page.by_id("rows").all("tr") if page.has_id("rows") else ():
            figure, cells = ("replay", row["id"].removeprefix("replay-")), row.all("td")
            place.say((*figure, "state"), cells[1].text)
            place.say((*figure, "done"), cells[3].text)
            place.say((*figure, "total"), cells[4].text)
            place.time((*figure, "begun"), cells[5])
            place, page = await self._see(f"/replays/{figure[1]}")
            shown = _vitals(page, "figures")
            place.say((*figure, "done"), shown["Settled"][0].text)
            place.say((*figure, "total"), shown["Counted at the start"][0].text)
        place, page = await self._see("/reconciliations")
        for row in page.by_id("rows").all("tr") if page.has_id("rows") else ():
            figure, cells = ("reconciliation", row["id"].removeprefix("run-")), row.all("td")
            words = [_lower(each.text).removesuffix(".") for each in cells[3].all("span")]
            place.say((*figure, "report"), "; ".join(words))
            place.time((*figure, "begun"), cells[0])
        place, page = await self._see("/changes")
        for row in page.by_id("rows").all("tr"):
            place.time(("change", row["id"].removeprefix("change-")), row.all("td")[4])
        place, page = await self._see("/people")
        for row in page.by_id("erasures-list").all("tr") if page.has_id("erasures-list") else ():
            figure, cells = ("erasure", row["id"].removeprefix("erasure-")), row.all("td")
            place.time((*figure, "begun"), cells[1])
            place.say((*figure, "events"), cells[4].text)

    def _config(self, place: Place, page: Element) -> None:
        running = page.by_id("running")
        started = running.all("time")[0]
        ms = round(datetime.fromisoformat(started["datetime"]).timestamp() * 1000)
        place.when(("started",), ms)
        place.age(("started",), running.text.rpartition(", ")[2])
        for row in page.all("tr"):
            id_, cells = row.attributes.get("id") or "", row.all("td")
            if id_.startswith("source-"):
                name = id_.removeprefix("source-")
                place.time(("verified", name), cells[2])
                place.say(("clock", name), cells[3].text)
        place.say(("store bytes",), page.by_id("store").all("dd")[1].text)

    async def _rotation(self, source: str) -> None:
        place, page = await self._see(f"/config/sources/{source}/rotation")
        if not page.has_id("vitals"):
            return
        shown = _vitals(page)
        for name in ("Kept", "Verified", "Waiting", "Dropped"):
            place.say(("rotation", source, name.lower()), shown[name][0].text)
        place.say(("rotation", source, "duplicates"), shown["Verified"][1].text.split()[0])


def _sink_rows(place: Place, page: Element) -> None:
    for row in page.by_id("sinks").all("tr"):
        figure, cells = ("sink", row["id"].removeprefix("sink-")), row.all("td")
        place.say((*figure, "state"), cells[1].all("span", class_="st")[0].text)
        place.say((*figure, "pending"), cells[3].text)
        if "not configured" not in cells[1].text:
            place.say((*figure, "in"), cells[4].text)
            place.say((*figure, "out"), cells[5].text)
        if cells[6].text != NONE:
            place.say((*figure, "done"), cells[6].text)
        place.time((*figure, "oldest"), cells[7])
        place.say((*figure, "dead"), cells[8].text)


def _vitals(page: Element, id_: str = "vitals") -> dict[str, list[Element]]:
    return {
        each.all("dt")[0].text: each.all("dd")
        for each in page.by_id(id_).children
        if isinstance(each, Element)
    }


def _first(cells: Sequence[Element]) -> str:
    return cells[0].text.split()[0]


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


class Commands:
    """The commands, as text and with --json."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def _run(self, command: str) -> tuple[Place, list[str]]:
        place = self._reader.place(f"relay {command}")
        url = self._reader.relay.service.admin.url
        arguments = [*shlex.split(command), "--url", url, "--token", TOKEN]
        runner = CliRunner(env={"COLUMNS": WIDE, "RELAY_CONFIG": None})
        done = await asyncio.to_thread(runner.invoke, main, arguments, prog_name="relay")
        assert isinstance(done.exception, SystemExit | None), done.exception
        return place, done.stdout.splitlines()

    async def read(self, sinks: Sequence[str]) -> None:
        """Run all commands that print figures."""
        place, (line, *_) = await self._run("status --json")
        _status(place, orjson.loads(line))
        place, lines = await self._run("status")
        self._status(place, lines)
        place, lines = await self._run("sinks list")
        for row in _table(lines):
            _command_sink(place, row)
            figure = "sink", row["SINK"]
            error = re.search(r"\(([^()]+)\)$", row["LAST ERROR"])
            place.age((*figure, "last error"), error[1] if error else "-")
        await self._lists()
        place, lines = await self._run("audience")
        total = _table(lines)[-1]
        names = ("STARTED", "25%", "50%", "75%", "COMPLETED", "LEADS")
        for name, head in zip((*MILESTONES, "lead"), names, strict=True):
            place.say(("people", name), total[head])
        place.say(("forms",), total["FORMS"])
        place, lines = await self._run("rotate status --source other")
        for line in lines[1:]:
            name, _, value = line.strip().partition(" ")
            shown = {"unverified": "waiting"}.get(name, name)
            if shown in ("kept", "verified", "waiting", "duplicates"):
                place.say(("rotation", "other", shown), value.strip())

    def _status(self, place: Place, lines: Sequence[str]) -> None:
        for row in _table(lines):
            _command_sink(place, row)
            place.age(("sink", row["SINK"], "since"), row["SINCE"])
        for line in lines:
            name, _, text = (each.strip() for each in line.partition("  "))
            if name == "away":
                away = text.partition(" before this start")[0]
                place.say(("away",), duration(0) if "never" in text else away)
            elif name == "lost":
                lost = text.removesuffix(", unacknowledged")
                place.say(("lost",), duration(0) if "nothing" in text else lost)
            elif name == "store":
                place.say(("store bytes",), text.partition(",")[0])
            elif line.startswith("source "):
                self._source(place, line)
            elif severity := re.match(r"(page|ticket|info): ", line):
                self._problem(place, line.removeprefix(severity[0]))

    def _source(self, place: Place, line: str) -> None:
        name, *parts = line.removeprefix("source ").split("  ")
        known = dict(part.split(" ", 1) for part in parts)
        place.age(("verified", name), known.pop("verified"))
        place.say(("clock", name), known.pop("clock", NONE))
        for kind, age in known.items():
            place.age(("last", name, kind), age)

    def _problem(self, place: Place, line: str) -> None:
        what = line.partition("  ")[0]
        place.say(("problem", what), "is named")
        if since := re.search(r"  since \S+, ([^ ]+ [^ ]+ ago|now)", line):
            place.age(("problem", what, "since"), since[1])

    async def _lists(self) -> None:
        place, lines = await self._run("dead-letters list")
        for row in _table(lines):
            figure = "dead letter", row["SINK"], row["ID"]
            place.say((*figure, "attempts"), row["ATTEMPTS"])
            place.age((*figure, "died"), row["DIED"])
        for row in _table(lines, "COUNT"):
            figure = "cause", row["SINK"], row["REASON"]
            place.say((*figure, "count"), row["COUNT"])
            place.age((*figure, "first"), row["FIRST"])
            place.age((*figure, "last"), row["LAST"])
        place, lines = await self._run("absences list")
        for row in _table(lines):
            absence = "absence", row["ID"]
            place.say((*absence, "away"), row["AWAY"])
            place.say((*absence, "missed"), row["LOST"].rpartition(": ")[2])
        place, lines = await self._run("replays list")
        for row in _table(lines, "NUMBER"):
            replay = "replay", row["NUMBER"]
            done, _, total = row["DONE"].partition(" of ")
            place.say((*replay, "done"), done)
            place.say((*replay, "total"), total)
            place.say((*replay, "state"), row["STATE"])
            place.age((*replay, "begun"), row["AGE"])
        place, lines = await self._run("reconciliations list")
        for row in _table(lines, "NUMBER"):
            place.age(("reconciliation", row["NUMBER"], "begun"), row["AGE"])
        place, lines = await self._run("unreadable list")
        place.say(("unreadable",), len(_table(lines)))


def _command_sink(place: Place, row: Mapping[str, str]) -> None:
    figure = "sink", row["SINK"]
    place.say((*figure, "state"), row["STATE"])
    place.say((*figure, "pending"), row["PENDING"])
    place.say((*figure, "dead"), row["DEAD"])
    place.age((*figure, "oldest"), row["OLDEST"])
    place.say((*figure, "in"), row["IN/MIN"].replace("-", NONE))
    place.say((*figure, "out"), row["OUT/MIN"].replace("-", NONE))
    place.say((*figure, "done"), row["DONE"])


def _table(lines: Sequence[str], first: str = "") -> list[dict[str, str]]:
    """Read the first table whose heads begin with a word: its columns stand under its heads."""
    for number, line in enumerate(lines):
        heads = list(re.finditer(r"\S+(?: \S+)*", line))
        if len(heads) > 2 and line.startswith(first) and line == line.upper():
            starts = [each.start() for each in heads]
            return [
                {
                    head[0]: row[start:end].strip()
                    for head, start, end in zip(heads, starts, [*starts[1:], None], strict=True)
                }
                for row in _until_blank(lines[number + 1 :])
            ]
    return []


def _until_blank(lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        if not line or line.startswith("Next page"):
            return
        yield line


_ORIGINAL = "FROM relay.events WHERE reconstructed = 0"
_DELIVERIES = "SELECT sink, status, count(*) FROM relay.deliveries GROUP BY 1, 2"
_OLDEST = """
SELECT d.sink, min(e.received_at) FROM relay.deliveries AS d
JOIN relay.events AS e ON e.seq = d.event
WHERE d.status = 'pending' AND d.replay IS NULL GROUP BY 1
"""
_PEOPLE = """
SELECT step, count(DISTINCT person) FROM relay.audience WHERE person IS NOT NULL GROUP BY 1
"""
_ENDED = "started_at + duration_ms"


def read_sql(place: Place, rows: Rows) -> None:
    """Count the rows themselves."""
    place.say(("events",), rows("SELECT count(*) FROM relay.events")[0][0])
    place.say(("unreadable",), rows("SELECT count(*) FROM relay.unreadable")[0][0])
    totals = {"pending": 0, "dead": 0}
    for sink, status, count in rows(_DELIVERIES):
        if status in totals:
            place.say(("sink", sink, status), count)
            totals[status] += count
    for status, count in totals.items():
        place.say((status,), count)
    for outcome in ("dead", "pending", "delivered"):
        sql = "SELECT count(DISTINCT event) FROM relay.deliveries WHERE status = %s"
        place.say(("events", outcome), rows(sql, outcome)[0][0])
    for sink, at_ms in rows(_OLDEST):
        place.when(("sink", sink, "oldest"), at_ms)
    for step, count in rows(_PEOPLE):
        place.say(("people", step), count)
    _read_arrivals(place, rows)
    _read_attempts(place, rows)


def _read_arrivals(place: Place, rows: Rows) -> None:
    leads = f"SELECT source, count(*) {_ORIGINAL} AND kind = 'lead.captured' GROUP BY 1"
    for source, count in rows(leads):
        place.say(("new leads", source), count)
    for source, kind, at_ms in rows(
        f"SELECT source, kind, max(received_at) {_ORIGINAL} GROUP BY 1, 2"
    ):
        place.when(("last", source, kind), at_ms)
    place.when(("last event",), rows(f"SELECT max(received_at) {_ORIGINAL}")[0][0])
    now_ms, since = place.clock(), f"SELECT count(*) {_ORIGINAL} AND received_at >= %s"
    place.say(("hour", "accepted"), rows(since, _hour_ms(now_ms))[0][0])
    place.say(("last minute",), rows(since, now_ms - now_ms % 1000 - 59_000)[0][0])


def _read_attempts(place: Place, rows: Rows) -> None:
    day = f"SELECT sink, result, count(*) FROM relay.attempts WHERE {_ENDED} >= %s GROUP BY 1, 2"
    for sink, result, count in rows(day, place.clock() - 24 * HOUR_MS):
        place.say(("attempts", sink, result), count)
    hour = f"SELECT result, count(*) FROM relay.attempts WHERE {_ENDED} >= %s GROUP BY 1"
    of_results: dict[str, int] = dict(rows(hour, _hour_ms(place.clock())))
    delivered = of_results.pop("delivered", 0)
    place.say(("hour", "delivered"), delivered)
    place.say(("hour", "failed"), sum(of_results.values()))


def _hour_ms(now_ms: int) -> int:
    """Return the beginning of the last hour's first minute."""
    return now_ms - now_ms % 60_000 + 60_000 - HOUR_MS
