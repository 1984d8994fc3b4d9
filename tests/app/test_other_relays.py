"""Open pages of one relay follow what the others of its store do."""

from pathlib import Path

import pytest

from relay.admin.page.live import TOPICS
from tests.app.cluster import SALES, Member, cluster, settings
from tests.caller import post
from tests.guarantees.process import until
from tests.store.places import PostgresPlace
from tests.stub_server import StubServer

pytestmark = pytest.mark.long


def topics(member: Member) -> set[str]:
    """Topics in which something was counted."""
    counts = member.relay.service._activity.counts
    return {TOPICS[what] for what, count in counts.items() if count}


async def test_a_page_of_the_idle_relay_hears_of_events_deliveries_and_orders(
    tmp_path: Path, place: PostgresPlace, monkeypatch: pytest.MonkeyPatch, destination: StubServer
) -> None:
    monkeypatch.setattr("relay.app.maintenance.QUIET_GAUGES_EVERY_S", 1.0)
    configs = [settings(tmp_path / name, place, destination) for name in "ab"]
    async with cluster(place, *configs) as members:
        (owner,) = (each for each in members if each.owns())
        (idle,) = (each for each in members if not each.owns())
        await until(lambda: idle.condition().state == "active", what="word of the sink")
        idle.relay.service._activity._counts.clear()
        assert (await owner.relay.ask(post(b'{"id": "a", "event": "video.ready"}'))).status == 202
        await until(lambda: {"events", "deliveries"} <= topics(idle), what="the delivery")
        assert "accepted" not in idle.relay.service._activity.counts
        await owner.operator.post(f"/sinks/{SALES}/pause")
        await until(lambda: {"changes", "sinks"} <= topics(idle), what="the pause")
