"""Notices: the results of actions, kept for the view that comes next."""

import pytest

from relay.admin.page import notices
from relay.admin.page.notices import Notices
from relay.admin.page.visit import Notice


class StillClock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def now_ms(self) -> int:
        return int(self.now_s * 1000)

    def monotonic(self) -> float:
        return self.now_s


def test_a_notice_stays_while_a_page_reads_itself_again_and_then_goes() -> None:
    clock = StillClock()
    kept = Notices(clock)
    identifier = kept.add(Notice(text="done"))
    assert kept.find(identifier) == Notice(text="done")
    clock.now_s += notices.SHOWN_S - 1
    assert kept.find(identifier) == Notice(text="done")
    clock.now_s += 1
    assert kept.find(identifier) is None
    assert kept.find("") is None


def test_only_the_latest_notices_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "KEPT_MAX", 2)
    kept = Notices(StillClock())
    identifiers = [kept.add(Notice(text=str(number))) for number in range(3)]
    assert [kept.find(each) is not None for each in identifiers] == [False, True, True]
