"""Each recipe of docs/recipes against its double: fields, limits, strangers' texts, failures."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from functools import cache
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from relay import config
from relay.core import sample_events
from relay.core.errors import Refused, SinkError
from relay.core.event import LEAD_CAPTURED, VIDEO_WATCHED, Event
from relay.core.foreign_json import whole
from relay.core.retry import Decision
from relay.core.sink import SinkSettings
from relay.outbound.visible_text import one_line
from relay.sinks.http.sink import HttpSink, Settings, build
from tests.cli.sender import developing, receiving
from tests.conftest import NOW_MS, ManualClock
from tests.recipes.tool import Shown, Tool
from tests.sinks.http.hostile import hostile_leads
from tests.sinks.http.test_misfires import result
from tests.stub_server import Reply, StubServer, until

DOCS = Path(__file__).parents[2] / "docs" / "recipes"
NAMES = sorted(file.stem for file in DOCS.glob("*.toml"))
SOURCE = '[[source]]\nname = "main"\npath = "/webhooks"\nsecrets = ["env:RELAY_SECRET"]\n\n'

KINDS = (LEAD_CAPTURED, VIDEO_WATCHED)
EMAIL, TITLE = "ada.lovelace@example.com", "Product tour"

HOSTILE = (
    "Ada \"Countess\" 'L' \\ Lovelace",
    'Ada", "admin": true, "x": "',
    "Ada {{ 7 * 7 }} {% raw %} ${7*7}",
    "{{DATE(2026-03-02T09:30:00Z, SHORT)}}",
    "Ada\r\nE-mail: eve@evil.example",
    "Ada\u2028Video: another\x0b\x85",
    "Ada 👩‍👩‍👧 🏳️‍🌈 李 明 Zoë",
    "Ada \ud83d Lovelace",
    "Ada \u202eecalevoL\u202c مرحبا",
    "Ada </script><b>L</b>&amp;",
    "Ada @everyone @here @all @channel",
    "Ada <@123> <@&9> <!channel>",
    "Ada <users/all> <at>L</at>",
    "Ada [x](https://evil.example)",
    "Ada <https://evil.example|x>",
    "Ada *b* _i_ ~~s~~ `c` ||p|| # h",
    '=HYPERLINK("https://evil.example")',
    "+1+2",
    "\u200f\u2063",
    "123",
)
"""None is longer than what the shortest field takes."""

LONG = ("Ada " + "x" * 59_996, "👋" * 60_000, "Ada " * 15_000)
SHORT = 200
"""No recipe that cuts shows a longer name."""


@cache
def tool_of(name: str) -> type[Tool]:
    found: type[Tool] = import_module(f"tests.recipes.{name.replace('-', '_')}").TOOL
    return found


def text_of(name: str) -> str:
    return (DOCS / f"{name}.toml").read_text(encoding="utf-8")


def loaded(folder: Path, name: str, *, at: str | None = None) -> config.Config:
    """Load a recipe as it stands, or with the tool's hosts replaced by a double's."""
    tool, texts = tool_of(name), [SOURCE + text_of(name)]
    names = ["RELAY_SECRET", *tool.environ]
    texts += ["whsec_5f2c9a1e7be04c1d", *tool.environ.values()]
    for origin in tool.origins if at is not None else ():
        texts = [text.replace(origin, at or "") for text in texts]
    file = folder / f"{name}.toml"
    file.write_text(texts[0], encoding="utf-8")
    return config.load(file, dict(zip(names, texts[1:], strict=True)))


_numbers = count(1)


def event_of(kind: str, name: object = "Ada Lovelace", **fields: object) -> Event:
    """Make a new lead or milestone of a person, who wrote `fields` into the form."""
    event_id = f"evt_{next(_numbers)}"
    sample = sample_events.event(kind, source="main", event_id=event_id)
    document = sample.document()
    data: dict[str, Any] = document["data"]
    data["video"]["title"] = TITLE
    data.get("viewer", data).update(name=name, email=EMAIL)
    if kind == LEAD_CAPTURED:
        data["fields"] = fields
    else:
        data.update(progress=75, milestone="75%", completed=False)
    # With escapes, because JSON has no other way to write half of a character.
    return replace(sample, body=json.dumps(document).encode())


def completed(event: Event) -> Event:
    document = event.document()
    document["data"] |= {"progress": 100, "milestone": "completed", "completed": True}
    return replace(event, body=json.dumps(document).encode())


class Recipe:
    """A recipe whose tool is a double on loopback."""

    def __init__(self, name: str, folder: Path, server: StubServer, tool: Tool) -> None:
        self.tool = tool
        self.server = server
        self._config = loaded(folder, name, at=server.url(""))
        self._sinks = {settings.name: self.build(settings) for settings in self._config.sinks}

    def taking(self, event: Event) -> list[str]:
        """Return the names of the sinks that take an event."""
        routes = self._config.routes
        return [route.sink for route in routes if route.evaluate(event).outcome == "takes"]

    def build(self, settings: SinkSettings) -> HttpSink:
        assert isinstance(settings, Settings)
        return build(settings, ManualClock())

    async def deliver(self, event: Event) -> list[Shown]:
        """Send an event to all sinks that take it, and return what the tool shows after it."""
        taking = self.taking(event)
        assert taking
        for name in taking:
            await self._sinks[name].send(event)
        return self.tool.shown

    async def decisions(self, event: Event, *, sink: str = "") -> list[Decision]:
        """Return what follows of a first attempt of each sink that takes an event, or of one."""
        taking = [sink] if sink else self.taking(event)
        settings = [each for each in self._config.sinks if each.name in taking]
        assert settings
        return [await result(self.build(each), event, policy=each.retry) for each in settings]

    async def close(self) -> None:
        for sink in self._sinks.values():
            await sink.close()


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def recipe(name: str, tmp_path: Path, destination: StubServer) -> AsyncIterator[Recipe]:
    tool = tool_of(name)()
    destination.reply = tool.answer
    recipe = Recipe(name, tmp_path, destination, tool)
    yield recipe
    await recipe.close()
    paths = [request.target.partition("?")[0] for request in destination.requests]
    assert "/macros/echo" not in paths, "a redirect was followed"


def test_a_recipe_passes_the_check_of_a_config_without_a_warning(name: str, tmp_path: Path) -> None:
    ready = loaded(tmp_path, name)
    assert (ready.mistakes, ready.warnings) == ((), ())


def test_the_page_of_a_recipe_shows_its_file_and_names_what_it_reads(name: str) -> None:
    page = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    assert re.findall(r"^```toml\n(.*?)^```$", page, re.DOTALL | re.MULTILINE) == [text_of(name)]
    read = set(re.findall(r'"env:(\w+)"', text_of(name)))
    assert read == set(tool_of(name).environ)
    assert f"]({name}.md)" in (DOCS / "README.md").read_text(encoding="utf-8")
    for origin in tool_of(name).origins:
        assert origin in text_of(name) + "".join(tool_of(name).environ.values())


def test_a_recipe_keeps_to_the_rate_that_the_tool_takes(name: str, tmp_path: Path) -> None:
    rates = [sink.rate for sink in loaded(tmp_path, name).sinks]
    most = tool_of(name).per_minute
    assert most is None or sum(rate * 60 for rate in rates if rate is not None) <= most
    assert most is None or None not in rates


def assert_shown(recipe: Recipe, kind: str, shown: Shown, name: str, fields: int = 0) -> None:
    """Assert that an event stands in its fields, and nothing of it in others."""
    labels = recipe.tool.labels[kind]
    assert tuple(label for label, _ in shown)[: len(labels)] == labels
    has_form = recipe.tool.shows_form and kind == LEAD_CAPTURED
    assert len(shown) == len(labels) + (fields if has_form else 0)
    values = dict(shown[: len(labels)])
    expected = {"E-mail": EMAIL, "Video": TITLE, "Name": name}
    if kind == VIDEO_WATCHED:
        expected["Reached"] = values.get("Reached", "")
        assert expected["Reached"] in {"75%", "completed"}
    for label in expected.keys() & set(labels):
        value = values[label] if recipe.tool.cuts else one_line(whole(values[label]))
        assert value == recipe.tool.spelled(expected[label])
    assert recipe.tool.acted == []


def of_kind(recipe: Recipe, kind: str, name: object, **fields: object) -> Event:
    """Return an event that the recipe takes: some take the end of a video only."""
    event = event_of(kind, name, **fields)
    return event if recipe.taking(event) else completed(event)


@pytest.mark.parametrize("kind", KINDS)
async def test_leads_and_milestones_arrive_in_their_fields(recipe: Recipe, kind: str) -> None:
    event = of_kind(recipe, kind, "Ada Lovelace", company="Northwind", phone="+49 30 5550 0101")
    for shown in await recipe.deliver(event):
        assert_shown(recipe, kind, shown, "Ada Lovelace", 2)
        if recipe.tool.shows_form and kind == LEAD_CAPTURED:
            assert shown[-2:] == [("company", "Northwind"), ("phone", "+49 30 5550 0101")]


@pytest.mark.parametrize("kind", KINDS)
async def test_what_strangers_write_stays_a_text_and_reaches_nobody_else(
    recipe: Recipe, kind: str
) -> None:
    for hostile in HOSTILE:
        event = of_kind(recipe, kind, hostile, **{hostile: hostile, "teamSize": 11})
        visible = one_line(whole(hostile))
        for shown in await recipe.deliver(event):
            values = dict(shown[: len(recipe.tool.labels[kind])])
            name = visible or one_line(values.get("Name", ""))  # some say that there is none
            assert_shown(recipe, kind, shown, name, 2)
        recipe.tool.clear()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_long_name_is_cut_so_that_the_event_arrives(recipe: Recipe, kind: str) -> None:
    for hostile in LONG:
        # All of them in full would be longer than a request of the sender.
        fields = {f"{number}{hostile[:600]}": hostile[:9_000] for number in range(30)}
        shown = await recipe.deliver(of_kind(recipe, kind, hostile, **fields))
        assert shown
        assert recipe.tool.acted == []
        for values in shown:
            name = dict(values).get("Name", hostile)
            assert name[:1] == hostile[:1]
            assert len(name) <= SHORT or not recipe.tool.cuts or "Name" not in dict(values)
        recipe.tool.clear()


async def test_what_no_sender_should_send_arrives_or_is_refused_and_does_nothing_else(
    recipe: Recipe,
) -> None:
    if not recipe.tool.cuts:
        pytest.skip("declared: the tool gets the event as it is")
    for lead in hostile_leads(200):
        try:
            await recipe.deliver(lead)
        except SinkError:
            assert recipe.tool.needs_key
    assert recipe.tool.acted == []


async def test_an_event_without_what_may_be_missing_arrives(recipe: Recipe) -> None:
    event = event_of(LEAD_CAPTURED, None)
    document = event.document()
    document["data"] |= {"fields": None, "video": {"id": "vid_1"}}
    if recipe.tool.cuts:  # else the tool takes the event as it is
        assert await recipe.deliver(replace(event, body=json.dumps(document).encode()))


async def test_a_repeat_is_dropped_where_the_tool_has_a_key_for_it(recipe: Recipe) -> None:
    event = event_of(LEAD_CAPTURED)
    first = len(await recipe.deliver(event))
    with suppress(Refused):  # some say so
        await recipe.deliver(event)
    assert len(recipe.tool.shown) == (first if recipe.tool.drops_repeats else 2 * first)


async def test_throttling_and_an_outage_cost_no_event(recipe: Recipe) -> None:
    event = event_of(LEAD_CAPTURED)
    for reply in (recipe.tool.throttling, Reply(500), Reply(503)):
        recipe.tool.instead = reply
        pause_ms = recipe.tool.pause_ms if reply is recipe.tool.throttling else 0
        for decision in await recipe.decisions(event):
            assert decision.result == "retry", decision.reason
            assert decision.due_ms - NOW_MS >= pause_ms
    recipe.tool.instead = None
    assert recipe.tool.shown == []
    assert await recipe.deliver(event)


async def test_a_revoked_key_parks_the_sink(recipe: Recipe) -> None:
    recipe.tool.revoke()
    for decision in await recipe.decisions(event_of(LEAD_CAPTURED)):
        assert decision.result == "parked", decision.reason
    assert recipe.tool.shown == []


ANSWERS = [(name, what) for name in NAMES for what in tool_of(name).answers]


@pytest.mark.parametrize(("name", "what"), ANSWERS)
async def test_an_answer_means_what_the_tool_documents(recipe: Recipe, what: str) -> None:
    answer = recipe.tool.answers[what]
    recipe.tool.instead = answer.reply
    for decision in await recipe.decisions(event_of(LEAD_CAPTURED), sink=answer.sink):
        assert decision.result == answer.result, decision.reason


WRONG = [(name, what) for name in NAMES for what in tool_of(name).wrong]


@pytest.mark.parametrize(("name", "what"), WRONG)
async def test_the_double_refuses_what_is_wrong(recipe: Recipe, what: str) -> None:
    await recipe.deliver(event_of(LEAD_CAPTURED))
    before, right = recipe.tool.shown, recipe.server.requests[-1]
    change, status = recipe.tool.wrong[what]
    assert recipe.tool.answer(change(right)).status == status
    assert recipe.tool.shown == before


@pytest.mark.servers
@pytest.mark.long
async def test_a_lead_of_the_sandbox_arrives_in_every_tool_that_was_down_at_first(
    tmp_path: Path,
) -> None:
    tools, servers, tables = [tool_of(name)() for name in NAMES], list[StubServer](), list[str]()
    async with AsyncExitStack() as stack:
        for name, tool in zip(NAMES, tools, strict=True):
            server = await stack.enter_async_context(StubServer())
            server.reply = lambda _: Reply(503)
            servers.append(server)
            tables.append(written_out(name, tool, server.url("")))
        developer = await stack.enter_async_context(developing(tmp_path, speed=2000.0))
        video = await developer.served.add(TITLE)
        await stack.enter_async_context(receiving(developer, sinks="\n".join(tables)))
        lead = {"video": video["id"], "email": EMAIL, "name": "Ada @all <@1> <users/all>"}
        await developer.served.control("viewers/lead", lead)
        await until(lambda: all(server.requests for server in servers), what="a try of each")
        for server, tool in zip(servers, tools, strict=True):
            server.reply = tool.answer
        await until(lambda: all(tool.shown for tool in tools), what="the lead in each tool")
        assert [tool.acted for tool in tools] == [[]] * len(tools)


def written_out(name: str, tool: Tool, url: str) -> str:
    """Write the values of references into a recipe, and a double in place of the tool's hosts."""
    text = text_of(name)
    for key, value in tool.environ.items():
        text = text.replace(f'"env:{key}"', json.dumps(value))
    for origin in tool.origins:
        text = text.replace(origin, url)
    return text.replace('first = "30s"', 'first = "1s"')
