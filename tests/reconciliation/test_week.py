"""A simulated week with three outages: what came live and what was given back is the truth."""

from collections import Counter
from pathlib import Path

import pytest

from tests.reconciliation.simulation import GIVEN_UP_MS, world

pytestmark = pytest.mark.servers

OUTAGES_H = (0.5, 3.0, 40.0)
BETWEEN_H = 30.0


@pytest.mark.long
async def test_a_week_with_outages_is_given_back(tmp_path: Path) -> None:
    named: Counter[str] = Counter()
    async with world(tmp_path, viewers=120) as one:
        for hours in OUTAGES_H:
            async with one.relay() as relay:
                await one.step_hours(BETWEEN_H)
                await relay.settled()
            await one.step_hours(hours)
            async with one.relay() as relay:
                await one.step(GIVEN_UP_MS)
                named.update((await relay.reconcile())["report"]["unknown"])
                await relay.settled()
        async with one.relay() as relay:
            await one.step_hours(BETWEEN_H)
            await relay.settled()
            listed = {video["id"] for video in await one.listed_videos()}

        told, published, viewers = one.facts(), one.facts("control"), one.truth()
        assert len(viewers) > 1000
        assert len(viewers - one.facts("plain").keys()) > 300

        assert viewers - told.keys() == set()
        assert told.keys() - published.keys() == set()
        assert max(told.values()) == 1

        missing = published.keys() - told.keys()
        trashed = {fact for fact in missing if fact[0] == "video.deleted" and fact[2] == "True"}
        # What is left are videos that came and went within one outage, which leave no trace.
        vanished = {fact[1] for fact in missing - trashed}
        assert len({fact for fact in trashed if fact[1] not in vanished}) == named["trash_gone"]
        assert vanished.isdisjoint(listed)
        assert vanished.isdisjoint(fact[1] for fact in told if fact[0].startswith("video."))
        assert named["anonymous"] > 0
