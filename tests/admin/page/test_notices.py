"""Notices: the results of actions, kept for the view that comes next."""

import pytest

from relay.admin.page import frame
from relay.admin.page.frame import Notices
from relay.admin.page.visit import Notice
from tests.conftest import ManualClock


def test_a_notice_stays_while_a_page_reads_itself_again_and_then_goes(clock: ManualClock) -> None:
    kept = Notices(clock)
    identifier = kept.add(Notice(text="done"))
    assert kept.find(identifier) == Notice(text="done")
    clock.ms += round(frame.NOTICE_SHOWN_S * 1000) - 1000
    assert kept.find(identifier) == Notice(text="done")
    clock.ms += 1000
    assert kept.find(identifier) is None
    assert kept.find("") is None


def test_only_the_latest_notices_are_kept(
    monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    monkeypatch.setattr(frame, "NOTICES_MAX", 2)
    kept = Notices(clock)
    identifiers = [kept.add(Notice(text=str(number))) for number in range(3)]
    assert [kept.find(each) is not None for each in identifiers] == [False, True, True]
