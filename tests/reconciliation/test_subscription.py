"""A run gives back the kinds that the endpoint receives, and fewer if the order names them."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from relay.core.event import LEAD_CAPTURED, SUBSCRIBABLE, VIDEO_WATCHED
from relay.reconciliation.reading import subscription
from relay.reconciliation.report import RunReport, words
from relay.store.reconstructions import RunRecord
from relay.video_service.api.errors import Reason, ServiceApiError
from relay.video_service.api.records import Webhook
from tests.cli.scene import Scene
from tests.reconciliation.simulation import (
    ADA,
    GIVEN_UP_MS,
    TOKEN,
    RunningRelay,
    World,
    world,
)
from tests.stub_server import until

OTHERS = [kind for kind in SUBSCRIBABLE if kind != LEAD_CAPTURED]
EVERYTHING = frozenset(SUBSCRIBABLE)


class Listed:
    """The part of an API that is asked, with some endpoints or an error."""

    def __init__(self, *events: Sequence[str] | None, error: Reason | None = None) -> None:
        self._endpoints = tuple(
            Webhook(id=f"wh_{number}", events=None if each is None else tuple(each))
            for number, each in enumerate(events)
        )
        self._error = error

    async def webhooks(self) -> tuple[Webhook, ...]:
        if self._error is not None:
            raise ServiceApiError(self._error)
        return self._endpoints

    async def webhook(self, endpoint: str) -> Webhook:
        return next(each for each in await self.webhooks() if each.id == endpoint)


async def test_the_kinds_are_those_of_the_source_s_endpoint() -> None:
    api = Listed([LEAD_CAPTURED], [VIDEO_WATCHED], [])
    assert (await subscription(api, "wh_0")).kinds == {LEAD_CAPTURED}
    assert (await subscription(api, "wh_2")).kinds == EVERYTHING


async def test_without_the_endpoint_s_id_they_are_those_of_any_endpoint() -> None:
    found = await subscription(Listed([LEAD_CAPTURED], [VIDEO_WATCHED]), None)
    assert found.kinds == {LEAD_CAPTURED, VIDEO_WATCHED}
    assert found.unknown is None
    assert (await subscription(Listed([LEAD_CAPTURED], []), None)).kinds == EVERYTHING


@pytest.mark.parametrize(
    "api",
    [
        Listed(),
        Listed(None),
        *(Listed(error=reason) for reason in ("no access", "not found", "broken answer")),
    ],
)
async def test_unknown_kinds_leave_nothing_out_and_are_named(api: Listed) -> None:
    found = await subscription(api, None)
    assert found.kinds == EVERYTHING
    report = RunReport()
    assert report.choose(found.kinds, found.unknown, requested=()) == EVERYTHING
    (line,) = [line for line in words(report, dry_run=False) if "is not known" in line]
    assert str(found.unknown) in line


async def test_an_api_that_is_down_ends_the_run() -> None:
    with pytest.raises(ServiceApiError):
        await subscription(Listed(error="cannot connect"), None)


def test_an_order_narrows_the_kinds_and_never_widens_them() -> None:
    report = RunReport()
    kinds = report.choose({LEAD_CAPTURED, VIDEO_WATCHED}, None, requested=OTHERS)
    assert kinds == {VIDEO_WATCHED}
    assert report.unrequested == [LEAD_CAPTURED]
    assert report.unsubscribed == [kind for kind in OTHERS if kind != VIDEO_WATCHED]


@pytest.fixture
async def away(tmp_path: Path) -> AsyncIterator[World]:
    """A relay that missed a view and a form, and whose key may see its endpoint."""
    async with world(tmp_path, viewers=0, videos=2) as one:
        one.access, one.api = "Admin", f'endpoint = "{one.endpoint.id}"'
        async with one.relay() as relay:
            one.submit()
            await one.step_hours(5)
            await relay.settled()
        one.submit(video=1)
        one.sandbox.services.library.add(title="New", duration_s=60.0)
        await one.step_hours(1)
        yield one


async def back(one: World, relay: RunningRelay) -> None:
    await one.step(GIVEN_UP_MS)
    await relay.settled()


@pytest.mark.servers
async def test_kinds_that_the_endpoint_does_not_receive_are_left_out_and_named(
    away: World,
) -> None:
    away.sandbox.webhooks.set_events(away.endpoint.id, [LEAD_CAPTURED])
    async with away.relay() as relay:
        await back(away, relay)
        run = await relay.reconcile()
        assert run["report"]["events"] == {LEAD_CAPTURED: 1}
        assert run["report"]["unsubscribed"] == OTHERS
        assert any("left out" in line and VIDEO_WATCHED in line for line in run["words"])
        assert await relay.service._store.absences.unreconciled("main") == []


@pytest.mark.servers
async def test_a_run_of_some_kinds_leaves_the_outage_to_a_run_of_all(away: World) -> None:
    async with away.relay() as relay:
        await back(away, relay)
        run = await relay.reconcile(events=[LEAD_CAPTURED])
        assert run["report"]["events"] == {LEAD_CAPTURED: 1}
        assert run["report"]["unrequested"] == OTHERS
        assert (run["report"]["videos"], run["report"]["unknown"]) == (0, {})
        rest = await relay.reconcile()
        assert rest["report"]["events"] == {
            "video.created": 1,
            "video.ready": 1,
            VIDEO_WATCHED: 1,
        }
        assert rest["report"]["unrequested"] == []
        assert await relay.service._store.absences.unreconciled("main") == []
        await relay.settled()
    (started,) = [each for each in away.received() if each["event"] == VIDEO_WATCHED][1:]
    assert started["data"]["viewer"]["email"] == ADA


@pytest.mark.servers
async def test_the_command_narrows_the_kinds_and_names_what_was_given_back(away: World) -> None:
    async with away.relay() as relay:
        await back(away, relay)
        at = f"--url {relay.service.admin.url} --token {TOKEN}"
        scene = Scene(away.folder)
        done = await scene.invoke(f"reconcile {at} --events {LEAD_CAPTURED}")
        assert done.exit_code == 0, done.output
        assert f"1 event reconstructed: 1 {LEAD_CAPTURED}" in done.output
        assert ADA in done.output
        refused = await scene.invoke(f"reconcile {at} --events lead")
        assert refused.exit_code == 2
        assert '"lead" is no kind' in refused.output


@pytest.mark.servers
async def test_a_person_who_is_erased_during_a_run_is_not_named_in_its_report(
    away: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with away.relay() as relay:
        await back(away, relay)
        store, ends = relay.service._store.reconstructions, 0
        end = store.end

        async def erase_and_end(*arguments: Any, **more: Any) -> RunRecord:
            nonlocal ends
            ends += 1
            if ends == 1:
                await relay.admin.post("/api/v1/people/erase", json={"email": ADA})
            return await end(*arguments, **more)

        monkeypatch.setattr(store, "end", erase_and_end)
        run = await relay.reconcile()
        assert run["report"]["events"][LEAD_CAPTURED] == 1
        await until(lambda: relay.service.reconciler.under_way("main") is None, what="its end")
        named = (await relay.get(f"/api/v1/reconciliations/{run['id']}"))["named"]
        assert [fact["kind"] for fact in named] == ["video.created", "video.ready"]


@pytest.mark.servers
async def test_a_kind_that_does_not_exist_is_refused(away: World) -> None:
    async with away.relay() as relay:
        answer = await relay.admin.post("/api/v1/reconciliations", json={"events": ["lead"]})
        assert answer.status_code == 422
        assert "No event is of kind lead; there are: video.created" in answer.json()["detail"]
