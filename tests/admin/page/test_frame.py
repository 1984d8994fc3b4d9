"""What holds for every view and action of the page: who sees it, who changes anything, and how."""

import contextlib
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote, urlsplit

import httpx
import pytest

from relay.admin.auth import KNOWN
from relay.admin.page.access.headers import SECURITY_HEADERS
from relay.admin.page.forms import SMALL_MAX
from relay.admin.page.view import Action, CsvTable, Download, PageRoute, PageView
from relay.admin.page.views import SECTIONS
from relay.core.errors import StoreBroken, StoreFull, StoreUnavailable
from tests import service
from tests.admin.page.document import Element, parse
from tests.admin.page.nginx import PrefixingNginx
from tests.admin.page.visiting import ADMIN, VIEWER_TOKEN, Visitor, visiting
from tests.admin.test_api import body, send
from tests.caller import post
from tests.guarantees.process import http_client
from tests.operator import TOKEN, operating
from tests.service import Relay

R = TypeVar("R", bound=PageRoute)


def declared(kind: type[R]) -> list[R]:
    return [each for section in SECTIONS for each in section.routes if isinstance(each, kind)]


VIEWS = [view for view in declared(PageView) if not view.is_form]
ACTIONS = declared(Action)
DOWNLOADS = declared(Download)
FILES = [each.path for each in (*DOWNLOADS, *declared(CsvTable))]

_VALUES = {"/sinks/": "all", "/config/sources/": "main", "/unreadable/": "00ff"}
"""Values of the first parameter of a path, by what stands before it; of all others, 1."""


def concrete(path: str) -> str:
    """Fill the parameters of a path."""
    before, brace, _ = path.partition("{")
    value = _VALUES.get(before, "1")
    return re.sub(r"{[^}]*}", value, path) if brace else path


def paths() -> list[str]:
    """Paths of all views that need no parameter."""
    return [view.path for view in VIEWS if "{" not in view.path]


@pytest.fixture
async def relay(relay: Relay) -> Relay:
    """A relay with an event, an unreadable request and a replay."""
    async with operating(relay) as operator:
        await send(relay, body("a"))
        await relay.ask(post(b"[]"))
        await relay.until_counted("relay_deliveries_total", "delivered", "all")
        await operator.post("/replays", {"sink": "all", "id": "a"})
    return relay


@contextlib.asynccontextmanager
async def browsing(relay: Relay, **headers: str) -> AsyncIterator[Visitor]:
    """A visitor without a login."""
    async with http_client(base_url=relay.service.admin.url, headers=headers) as client:
        yield Visitor(client)


async def audited(relay: Relay) -> list[str]:
    async with operating(relay) as operator:
        return [each["operation"] for each in (await operator.get("/audit"))["changes"]]


def form_token(page: Element) -> str:
    return page.form("/logout").fields()["form_token"]


# Views


@pytest.mark.parametrize("token", [TOKEN, VIEWER_TOKEN])
async def test_every_view_answers_with_one_whole_page(relay: Relay, token: str) -> None:
    async with visiting(relay, token=token) as visitor:
        for view in VIEWS:
            answer = await visitor.client.get(concrete(view.path))
            page = parse(answer.text)
            assert_status(view, answer, token)
            assert len(page.all("h1")) == 1, view.path
            assert page.by_id("main").tag == "main"
            ids = [each["id"] for each in page.all() if "id" in each.attributes]
            assert len(ids) == len(set(ids)), view.path
            for form in page.all("form"):
                if form.attributes.get("method") == "post":
                    assert form.fields()["form_token"] == form_token(page), view.path


def assert_status(view: PageView, answer: httpx.Response, token: str) -> None:
    if view.admin_only and token == VIEWER_TOKEN:
        assert answer.status_code == 403, view.path
    elif "{" in view.path:
        # There is not an example of everything.
        assert answer.status_code in (200, 404), view.path
    else:
        assert answer.status_code == 200, view.path


async def test_a_viewer_gets_no_form_of_a_change(relay: Relay, viewer: Visitor) -> None:
    changing = [
        re.compile(re.sub(r"{[^}]*}", "[^/]+", action.path))
        for action in ACTIONS
        if not action.is_reading
    ]
    for view in VIEWS:
        page = parse((await viewer.client.get(concrete(view.path))).text)
        targets = [
            urlsplit(form["action"]).path
            for form in page.all("form")
            if form.attributes.get("method") == "post"
        ]
        offered = [path for path in targets if any(each.fullmatch(path) for each in changing)]
        assert offered == [], view.path


async def test_every_download_is_a_file(relay: Relay, visitor: Visitor, viewer: Visitor) -> None:
    for path in FILES:
        answer = await visitor.client.get(concrete(path))
        assert answer.status_code in (200, 404), path
        if answer.status_code == 200:
            assert answer.headers["content-disposition"].startswith("attachment;")
    for download in DOWNLOADS:
        answer = await viewer.client.get(concrete(download.path))
        assert answer.status_code == (403 if download.admin_only else 200), download.path


async def test_unknown_parameters_get_a_page_with_the_fault(relay: Relay, visitor: Visitor) -> None:
    for path in paths():
        page = await visitor.see(f"{path}?<b>=1", status=400)
        assert "unknown parameter" in page.by_id("main").text
        assert page.links()["Drop all parameters"] == path


@pytest.mark.parametrize(
    "path",
    ["/nowhere", "/events/x", "/%00", "/..%2f", "/sinks/nobody/there/is", "/assets2", "/é"],
)
async def test_unknown_paths_get_a_page(relay: Relay, path: str, visitor: Visitor) -> None:
    page = await visitor.see(quote(path, safe="/%"), status=404)
    assert page.by_id("failed").text == "Not Found"
    assert "/" in page.links().values()


async def test_head_answers_as_get_without_the_page(relay: Relay, visitor: Visitor) -> None:
    for path in [*paths(), "/nowhere"]:
        got, head = [await visitor.client.request(method, path) for method in ("GET", "HEAD")]
        assert head.status_code == got.status_code, path
        assert head.content == b""
        assert head.headers["content-type"] == got.headers["content-type"]


# Responses


async def test_every_response_has_the_security_headers(relay: Relay, visitor: Visitor) -> None:
    async with browsing(relay) as stranger:
        page = await visitor.see("/")
        assets = [each["src"] for each in page.all("script")]
        assets += [each["href"] for each in page.all("link")]
        assert len(assets) >= 3
        answers = [await visitor.client.get(path) for path in [*paths(), "/nowhere", "/?x=1"]]
        answers += [await visitor.client.get(path) for path in FILES]
        answers += [await visitor.client.get("/assets/nothing.js"), await stranger.client.get("/")]
        answers += [await stranger.client.get("/login"), await stranger.client.get("/?again=1")]
        answers += [await stranger.post("/login", {"token": "wrong"}), await stranger.post("/", {})]
        answers += [await stranger.client.get("/", headers={"relay-fragment": "1"})]
        answers += [await stranger.client.get("/", headers={"host": "evil.test"})]
        answers += [await visitor.client.put("/sinks"), await visitor.post("/config/reload", {})]
        for answer in answers:
            for name, value in SECURITY_HEADERS.items():
                assert answer.headers[name] == value, (answer.url, answer.status_code, name)
            assert "server" not in answer.headers
        for path in assets:
            answer = await stranger.client.get(path)
            assert answer.status_code == 200
            assert "immutable" in answer.headers["cache-control"]
            others = {name for name in SECURITY_HEADERS if name != "Cache-Control"}
            assert all(answer.headers[name] == SECURITY_HEADERS[name] for name in others)


async def test_the_first_view_with_all_that_it_loads_is_light(relay: Relay) -> None:
    async with visiting(relay) as visitor:
        page = await visitor.see("/")
        scripts = [each["src"] for each in page.all("script")]
        others = [each["href"] for each in page.all("link")]
        sizes = {
            path: int((await visitor.client.get(path)).headers["content-length"])
            for path in ["/", *scripts, *others]
        }
        assert sum(sizes.values()) < 60_000, sizes
        assert sum(sizes[path] for path in scripts) < 30_000, sizes


async def test_pages_are_compressed_for_those_who_take_it(relay: Relay, visitor: Visitor) -> None:
    packed = await visitor.client.get("/")
    plain = await visitor.client.get("/", headers={"accept-encoding": "identity"})
    assert packed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert packed.headers["vary"] == plain.headers["vary"] == "Accept-Encoding, Cookie"


@pytest.mark.parametrize("error", [StoreBroken("the disk is gone"), StoreFull("the disk is full")])
async def test_a_store_that_fails_gives_a_page_with_a_sentence(
    relay: Relay, monkeypatch: pytest.MonkeyPatch, error: Exception, visitor: Visitor
) -> None:
    async def failing(*_: object, **__: object) -> object:
        raise error

    page = await visitor.see("/sinks")
    monkeypatch.setattr(relay.service._store.audit, "newest", failing)
    failed = await visitor.see("/changes", status=503)
    assert failed.by_id("failed").text == "Service Unavailable"
    assert str(error) in failed.by_id("main").text
    assert "Traceback" not in visitor.html
    monkeypatch.setattr(relay.service._store.absences, "acknowledge", failing)
    await visitor.see("/config")
    answer = await visitor.post("/absences/1/acknowledge", {"form_token": form_token(page)})
    page = await visitor.see(answer.headers["location"])
    assert page.by_id("notice").text == str(error)
    monkeypatch.setattr(relay.service._store.sessions, "find", failing)
    answer = await visitor.client.get("/sinks")
    assert answer.status_code == 503
    assert "The relay cannot log you in" in parse(answer.text).text


async def test_now_says_that_the_store_cannot_be_read(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def failing(*_: object, **__: object) -> object:
        raise StoreUnavailable("the disk hangs")

    async with visiting(relay) as visitor:
        store = relay.service._store
        monkeypatch.setattr(store, "backlogs", failing)
        for part, method in ((store.audit, "newest"), (store.sink_states, "since")):
            monkeypatch.setattr(part, method, failing)
        page = await visitor.see("/")
    assert "The store cannot be read" in page.by_id("verdict").text
    assert page.has_id("sink-all")


async def test_a_disk_without_room_for_events_still_has_a_page(tmp_path: Path) -> None:
    settings = service.read(tmp_path, tables=ADMIN, min_free="1024GiB")
    async with service.serving(settings) as relay, visiting(relay) as visitor:
        for path in paths():
            assert (await visitor.see(path)).has_id("main")
        page = await visitor.see("/")
        assert "bad" in page.by_id("verdict").classes
        page = await visitor.submit((await visitor.see("/config")).form("/config/reload"))
        assert page.by_id("notice").text.startswith("The config was reloaded")


# Changes


async def test_every_form_needs_its_session_its_token_and_our_origin(relay: Relay) -> None:
    before = await audited(relay)
    async with (
        visiting(relay) as visitor,
        visiting(relay) as other,
        visiting(relay, token=VIEWER_TOKEN) as viewer,
        browsing(relay) as stranger,
    ):
        token, others, own = [
            {"form_token": form_token(await each.see("/"))} for each in (visitor, other, viewer)
        ]
        posted = [each for each in declared(PageRoute) if each.method == "POST"]
        for action in posted:
            path = concrete(action.path)
            for fields in ({}, {"form_token": ""}, {"form_token": "é"}, others):
                assert_refused(await visitor.post(path, fields))
            for origin in ("null", "https://evil.test", f"{visitor.origin}.evil.test", ""):
                assert_refused(await visitor.post(path, token, origin=origin))
            assert_refused(await visitor.client.post(path, data=token))
            foreign = {"origin": visitor.origin, "sec-fetch-site": "cross-site"}
            assert_refused(await visitor.client.post(path, data=token, headers=foreign))
            answer = await stranger.post(path, token)
            assert (answer.status_code, answer.headers["location"]) == (303, "/login"), path
            if not isinstance(action, Action) or not action.is_reading:
                assert (await viewer.post(path, own)).status_code == 403, path
            assert await audited(relay) == before, path


def assert_refused(answer: httpx.Response) -> None:
    assert answer.status_code == 403, answer.url
    assert "This form is not valid any more" in parse(answer.text).text


async def test_a_form_from_a_malformed_address_leads_to_the_first_view(relay: Relay) -> None:
    async with visiting(relay, token=VIEWER_TOKEN) as visitor:
        fields = {"form_token": form_token(await visitor.see("/")), "text": "ada@example.com"}
        headers = {"origin": visitor.origin, "referer": "http://["}
        answer = await visitor.client.post("/find", data=fields, headers=headers)
        assert answer.status_code == 303
        assert answer.headers["location"].startswith("/?done=")


async def test_no_action_is_performed_by_a_link(relay: Relay) -> None:
    before = await audited(relay)
    views = [re.compile(re.sub(r"{[^}]*}", "[^/]+", view.path)) for view in VIEWS]
    async with visiting(relay) as visitor:
        for action in ACTIONS:
            path = concrete(action.path)
            if not any(each.fullmatch(path) for each in views):
                await visitor.see(path, status=404)
    assert await audited(relay) == before


# Logins


@pytest.mark.parametrize("token", [TOKEN, VIEWER_TOKEN])
async def test_a_session_lasts_from_login_to_logout(relay: Relay, token: str) -> None:
    async with browsing(relay) as visitor:
        answer = await visitor.post("/login", {"token": token, "next": "/sinks"})
        assert (answer.status_code, answer.headers["location"]) == (303, "/sinks")
        cookie, known = answer.headers.get_list("set-cookie")
        assert re.fullmatch(r"relay-\d+=[0-9a-f]{64}; Path=/; HttpOnly; SameSite=Strict", cookie)
        assert re.fullmatch(r"relay-\d+-known=[0-9a-f]{64}; .*; Max-Age=2592000", known)
        page = await visitor.see("/sinks")
        assert page.has_id("rights") == (token == VIEWER_TOKEN)
        kept = dict(visitor.client.cookies)
        answer = await visitor.post("/logout", page.form("/logout").fields())
        assert (answer.status_code, answer.headers["location"]) == (303, "/login")
        assert "Max-Age=0" in answer.headers["set-cookie"]
        visitor.client.cookies.update(kept)
        answer = await visitor.client.get("/sinks")
        assert (answer.status_code, answer.headers["location"]) == (303, "/login?next=%2Fsinks")


async def test_a_logout_needs_the_form_of_its_session(relay: Relay, visitor: Visitor) -> None:
    for fields in ({}, {"form_token": "0" * 64}):
        assert (await visitor.post("/logout", fields)).status_code == 403
    token = form_token(await visitor.see("/"))
    answer = await visitor.post("/logout", {"form_token": token}, origin="https://evil.test")
    assert answer.status_code == 403
    await visitor.see("/")


async def test_a_wrong_token_gets_no_session(relay: Relay) -> None:
    async with browsing(relay) as visitor:
        for token in ("", "wrong", TOKEN + " ", "é", VIEWER_TOKEN[:-1]):
            answer = await visitor.post("/login", {"token": token})
            assert answer.status_code == 401
            page = parse(answer.text)
            assert page.by_id("problem").text == "That token is not right."
            assert page.by_id("token").attributes.get("value") is None
        answer = await visitor.post("/login", {"token": "x" * SMALL_MAX})
        assert answer.status_code == 413
        # The address is known, by the right token of the API.
        for number in range(KNOWN.tries):
            answer = await visitor.post("/login", {"token": f"guess-{number}"})
        assert answer.status_code == 429
        assert int(answer.headers["Retry-After"]) > 0
        assert not visitor.client.cookies


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ("//evil.test", "/"),
        ("https://evil.test", "/"),
        ("/\\evil.test", "/"),
        ("/\tevil", "/"),
        ("/logout", "/"),
        ("/changes?operation=pause_sink", "/changes?operation=pause_sink"),
    ],
)
async def test_a_login_leads_to_our_own_paths_only(relay: Relay, given: str, taken: str) -> None:
    async with browsing(relay) as visitor:
        answer = await visitor.post("/login", {"token": TOKEN, "next": given})
        assert answer.headers["location"] == taken


async def test_a_pasted_link_works_in_spite_of_the_strict_cookie(relay: Relay) -> None:
    async with visiting(relay) as visitor, browsing(relay) as stranger:
        answer = await stranger.client.get("/changes?limit=2")
        assert answer.status_code == 200
        (refresh,) = (
            each for each in parse(answer.text).all("meta") if "http-equiv" in each.attributes
        )
        assert refresh["content"] == "0;url=/changes?limit=2&again=1"
        assert (await visitor.see("/changes?limit=2&again=1")).has_id("main")
        answer = await stranger.client.get("/changes?limit=2&again=1")
        assert answer.status_code == 303
        assert answer.headers["location"] == "/login?next=%2Fchanges%3Flimit%3D2"
        answer = await stranger.client.get("/", headers={"sec-fetch-site": "same-origin"})
        assert (answer.status_code, answer.headers["location"]) == (303, "/login")
        answer = await stranger.client.get("/", headers={"relay-fragment": "1"})
        assert answer.status_code == 401


async def test_a_restart_of_the_relay_logs_nobody_out(tmp_path: Path) -> None:
    settings = service.read(tmp_path, tables=ADMIN)
    async with service.serving(settings) as relay, visiting(relay) as visitor:
        token = form_token(await visitor.see("/"))
        identifier = visitor.client.cookies[f"relay-{relay.service.admin.port}"]
    async with service.serving(settings) as relay, browsing(relay) as visitor:
        visitor.client.cookies.set(f"relay-{relay.service.admin.port}", identifier)
        page = await visitor.see("/config")
        assert form_token(page) == token
        page = await visitor.submit(page.form("/config/reload"))
        assert page.by_id("notice").text.startswith("The config was reloaded")


async def test_a_changed_token_ends_its_sessions_alone(tmp_path: Path) -> None:
    settings = service.read(tmp_path, tables=ADMIN)
    async with (
        service.serving(settings) as relay,
        visiting(relay) as visitor,
        visiting(relay, token=VIEWER_TOKEN) as viewer,
    ):
        text = settings.file.read_text(encoding="utf-8")
        settings.file.write_text(
            text.replace(TOKEN, "another-token-of-the-tests"), encoding="utf-8"
        )
        form = (await visitor.see("/config")).form("/config/reload")
        answer = await visitor.post(form["action"], form.fields())
        assert answer.status_code == 303
        answer = await visitor.client.get(answer.headers["location"])
        assert answer.headers["location"].startswith("/login?next=%2Fconfig")
        assert (await viewer.see("/")).has_id("rights")


async def test_without_any_token_this_machine_alone_sees_the_page(tmp_path: Path) -> None:
    async with service.serving(service.read(tmp_path)) as relay, browsing(relay) as visitor:
        page = await visitor.see("/")
        assert "no admin.token is configured" in page.by_id("rights").text
        assert not page.all("form", class_="one")
        answer = await visitor.post("/config/reload", {"form_token": ""})
        assert answer.status_code == 403
        found = await visitor.submit(page.form("/find"))
        assert found.all("h1")[0].text == "Events"
        foreign = await visitor.post("/find", {"text": "x"}, origin="http://evil.test")
        assert foreign.status_code == 403
        for name in ("x-forwarded-for", "via", "forwarded"):
            answer = await visitor.client.get("/?again=1", headers={name: "192.0.2.1"})
            assert answer.status_code == 303, name
        answer = await visitor.client.get("/", headers={"host": "evil.test"})
        assert answer.status_code == 421


async def test_the_cookie_opens_pages_only_and_the_bearer_the_api_only(relay: Relay) -> None:
    bearer = f"Bearer {TOKEN}"
    async with visiting(relay) as visitor, browsing(relay, authorization=bearer) as operator:
        for path in ("/api/v1/sinks", "/api/v1/audit", "/api/v1/openapi.json", "/api/v1/stream"):
            assert (await visitor.client.get(path)).status_code == 401
        assert (await visitor.client.post("/-/reload")).status_code == 401
        assert (await operator.client.get("/api/v1/sinks")).status_code == 200
        for path in [*paths(), *FILES, "/live"]:
            answer = await operator.client.get(f"{path}?again=1")
            assert answer.status_code in (303, 401), path


@pytest.mark.parametrize("token", [VIEWER_TOKEN])
async def test_a_viewers_token_opens_nothing_of_the_api(relay: Relay, token: str) -> None:
    async with browsing(relay, authorization=f"Bearer {token}") as viewer:
        assert (await viewer.client.get("/api/v1/sinks")).status_code == 401


# A proxy with a path prefix


def addresses(page: Element) -> Iterator[str]:
    """Every address of ours in a page."""
    for name in ("href", "src", "action", "data-live-url"):
        for each in page.all():
            if not (each.attributes.get(name) or "#").startswith("#"):
                yield each[name]


@pytest.mark.servers
@pytest.mark.parametrize("slash", ["", "/"])
async def test_the_page_works_under_the_path_of_a_proxy(
    tmp_path: Path, relay: Relay, slash: str
) -> None:
    port = relay.service.admin.port
    nginx = PrefixingNginx(tmp_path / "nginx", relay_port=port, slash=slash)
    nginx.start()
    try:
        async with http_client(base_url=f"http://127.0.0.1:{nginx.port}") as client:
            visitor = Visitor(client)
            answer = await client.get("/ops/relay/changes?again=1")
            assert answer.headers["location"] == "/ops/relay/login?next=%2Fchanges"
            assert (await client.get("/ops/relay?again=1")).has_redirect_location
            login = await visitor.see("/ops/relay/login?next=%2Fchanges")
            (form,) = login.all("form")
            answer = await visitor.post(form["action"], {**form.fields(), "token": TOKEN})
            assert answer.headers["location"] == "/ops/relay/changes"
            assert f"relay-{nginx.port}=" in answer.headers["set-cookie"]
            assert "; Path=/ops/relay;" in answer.headers["set-cookie"]
            for path in paths():
                page = await visitor.see(f"/ops/relay{path}")
                outside = [each for each in addresses(page) if not each.startswith("/ops/relay/")]
                assert outside == [], path
            for each in (*page.all("link"), *page.all("script")):
                assert (await client.get(each.attributes.get("href") or each["src"])).is_success
            form = (await visitor.see("/ops/relay/config")).form("/ops/relay/config/reload")
            page = await visitor.submit(form)
            assert page.by_id("notice").text.startswith("The config was reloaded")
            await visitor.see("/ops/relay/sinks")
            answer = await visitor.post("/ops/relay/sinks/nobody/pause", form.fields())
            assert answer.headers["location"].startswith("/ops/relay/sinks?done=")
            answer = await visitor.post("/ops/relay/logout", form.fields())
            assert answer.headers["location"] == "/ops/relay/login"
    finally:
        nginx.stop()


# Templates

_FOLDER = Path(service.__file__).parents[1] / "relay" / "admin" / "page"
_TEMPLATES = sorted((_FOLDER / "templates").iterdir())
_JINJA = re.compile(r"{{.*?}}|{%.*?%}|{#.*?#}", re.DOTALL)
_TAG = re.compile(r"<[a-zA-Z][^<>]*>")
_UNQUOTED = re.compile(r"\s[\w-]+=(?![\"'])")


@pytest.mark.parametrize("file", _TEMPLATES, ids=lambda file: file.name)
def test_no_template_turns_text_into_markup(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert file.suffix == ".html", "autoescape is on by the file's name"
    expressions = " ".join(_JINJA.findall(text))
    assert not re.search(r"\|\s*safe\b|Markup|autoescape|\|\s*tojson", expressions)
    markup = _JINJA.sub(lambda match: "x" if match[0].startswith("{{") else " ", text)
    tags = _TAG.findall(markup)
    assert [tag for tag in tags if _UNQUOTED.search(re.sub(r"\"[^\"]*\"", '""', tag))] == []
    assert [tag for tag in tags if re.search(r"\s(style|on[a-z]+|srcdoc)=", tag)] == []
    assert [tag for tag in tags if tag.startswith("<style")] == []
    scripts = [tag for tag in tags if tag.startswith("<script")]
    assert all(' src="' in tag for tag in scripts)
    assert len(re.findall(r"<script[^>]*></script>", markup)) == len(scripts)
    assert "javascript:" not in text


def test_no_module_of_the_page_makes_markup() -> None:
    for file in _FOLDER.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        assert "Markup(" not in text, file.name
        assert "HTMLResponse" not in text, file.name
