"""The API's client against the sandbox: true, slow, rate-limited, lying, rude and down."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from relay.core.api_settings import ApiSettings
from relay.core.clock import SystemClock
from relay.core.config_values import Secret
from relay.core.request_budget import BURST
from relay.sandbox.viewing import Visit
from relay.video_service.api.client import Api
from relay.video_service.api.errors import ServiceApiError
from relay.video_service.api.fields import NAMES
from relay.video_service.api.records import Session, Video
from tests.conftest import NOW_MS
from tests.sandbox.service import Served, serving

pytestmark = pytest.mark.servers

DOCUMENT = Path(__file__).parents[2] / "docs" / "video-service.md"
EMAIL = "ada@example.com"


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving(clock=SystemClock(), speed=1000) as served:
        yield served


@pytest.fixture
async def api(served: Served) -> AsyncIterator[Api]:
    async with connect(served) as api:
        yield api


def connect(served: Served, **changes: object) -> Api:
    key = served.headers("Admin")["Authorization"].removeprefix("Bearer ")
    values = {"base_url": served.url, "key": Secret(key), **changes}
    return Api(ApiSettings(**values))  # type: ignore[arg-type]


async def sessions_of(api: Api) -> list[Session]:
    return [session async for page in api.sessions() for session in page.sessions]


async def videos_of(api: Api) -> list[Video]:
    return [video async for video in api.videos()]


def test_the_documented_names_are_those_that_are_read() -> None:
    table = re.findall(
        r"^\| `([a-z._]+)` \| `(\w+)` \|$", DOCUMENT.read_text("utf-8"), re.MULTILINE
    )
    assert dict(table) == NAMES


async def test_every_named_field_is_read_from_the_sandbox(served: Served, api: Api) -> None:
    """A field that one of the two names otherwise would be None."""
    video = await served.add("A tour")
    watch = {"video": video["id"], "email": EMAIL, "name": "Ada", "from": 0, "to": 1000}
    await served.control("viewers/watch", watch)
    form = {"video": video["id"], "email": EMAIL, "name": "Ada", "fields": {"company": "Contoso"}}
    await served.control("viewers/lead", form)
    (listed,) = await videos_of(api)
    unknown = {name for name in Video.__struct_fields__ if getattr(listed, name) is None}
    assert unknown == {"error"}
    (watched,) = await api.viewer(EMAIL)
    assert watched.video_id == video["id"]
    assert None not in (watched.title, watched.percent, watched.finished, watched.last_ms)
    sessions = await sessions_of(api)
    assert {session.email for session in sessions} == {EMAIL}
    for session in sessions:
        assert session.id is not None
        assert (session.video_id, session.title) == (video["id"], "A tour")
        assert None not in (session.started_ms, session.percent, session.finished)
    (lead,) = (lead for session in sessions for lead in session.submitted)
    assert (lead.email, lead.fields) == (EMAIL, {"company": "Contoso"})
    assert None not in (lead.id, lead.created_ms)
    assert (listed.created_ms or 0) > NOW_MS
    assert api.skipped == 0


async def test_an_unknown_person_has_watched_nothing(api: Api) -> None:
    assert await api.viewer("nobody@example.com") == ()


async def test_pages_are_one_sequence_however_small_they_are(served: Served, api: Api) -> None:
    video = await served.add()
    viewing = served.sandbox.services.viewing
    for _ in range(1005):
        viewing.end(viewing.begin(video["id"], Visit()).id)
    places = [page async for page in api.sessions()]
    assert [len(page.sessions) for page in places] == [1000, 5]
    after = [page async for page in api.sessions(after=places[0].next)]
    assert [page.sessions for page in after] == [places[1].sessions]


async def test_a_slow_answer_is_waited_for(served: Served, api: Api) -> None:
    await served.control("answers", {"slow": 0.3})
    assert await videos_of(api) == []


async def test_a_limit_is_obeyed_with_and_without_a_time(served: Served, api: Api) -> None:
    for says_when in (True, False):
        await served.control("limits", {"seconds": 0.5, "retryAfter": says_when})
        assert await videos_of(api) == []


async def test_all_clients_with_one_key_share_its_budget(served: Served, api: Api) -> None:
    begun_s = time.monotonic()
    async with connect(served) as other, asyncio.TaskGroup() as group:
        for each in (api, other) * (BURST // 2 + 5):
            group.create_task(each.webhooks())
    assert time.monotonic() - begun_s > 1.0


async def test_false_values_are_unknown_and_a_missing_list_is_an_error(
    served: Served, api: Api
) -> None:
    await served.add()
    await served.control("answers", {"change": {"videos.title": 7, "videos.new": {"a": [1]}}})
    (video,) = await videos_of(api)
    assert (video.title, video.status) == (None, "ready")
    await served.control("answers", {"drop": ["videos.id"]})
    assert (await videos_of(api), api.skipped) == ([], 1)
    await served.control("answers", {"drop": ["videos"]})
    with pytest.raises(ServiceApiError) as caught:
        await videos_of(api)
    assert caught.value.reason == "broken answer"


@pytest.mark.parametrize("answer", ["videos", "sessions", "viewer", "webhooks", "deliveries"])
@pytest.mark.parametrize("change", [{"drop": True}, {"change": {"a": []}}, {"change": None}])
async def test_no_answer_without_its_list_is_an_empty_list(
    served: Served, api: Api, answer: str, change: dict[str, object]
) -> None:
    endpoint = (await api.register("http://127.0.0.1:9/webhooks", ())).webhook
    assert endpoint is not None
    ask: dict[str, Callable[[], Awaitable[object]]] = {
        "videos": lambda: videos_of(api),
        "sessions": lambda: sessions_of(api),
        "viewer": lambda: api.viewer(EMAIL),
        "webhooks": api.webhooks,
        "deliveries": lambda: api.deliveries(endpoint.id),
    }
    member = "videos" if answer == "viewer" else answer
    (how, value), *_ = change.items()
    lie: object = [member] if how == "drop" else {member: value}
    await served.control("answers", {how: lie})
    with pytest.raises(ServiceApiError, match=r"^the video service's API: broken answer$"):
        await ask[answer]()


async def test_a_service_that_is_down_for_a_moment_is_asked_again(served: Served, api: Api) -> None:
    await served.control("down", {"seconds": 0.4})
    assert await api.webhooks() == ()


async def test_each_access_has_its_reason(served: Served, api: Api) -> None:
    key = served.headers("Read only")["Authorization"].removeprefix("Bearer ")
    async with connect(served, key=Secret(key)) as reader:
        await reader.check_analytics()
        with pytest.raises(ServiceApiError) as caught:
            await reader.webhooks()
        assert caught.value.reason == "no access"
    (admin,) = (
        each.id for each in served.sandbox.workspace.keys.values() if each.access == "Admin"
    )
    await served.control(f"keys/{admin}/revoke")
    with pytest.raises(ServiceApiError) as caught:
        await api.check_analytics()
    assert caught.value.reason == "key refused"
