"""What a run's report counts, and what it tells the operator."""

import pytest

from relay.core.event import Event
from relay.reconciliation.report import Report, words
from relay.store.reconstructions import ReconstructionOutcome


@pytest.mark.parametrize("outcome", ["known", "arrived", "erased"])
def test_an_event_that_was_not_made_is_counted_by_its_reason(
    lead: Event, outcome: ReconstructionOutcome
) -> None:
    report = Report()
    report.note(lead, outcome)
    assert report.numbers() == Report().numbers() | {outcome: 1}


def test_the_operator_reads_what_was_not_made_and_why() -> None:
    report = Report(
        events={"lead.captured": 2, "video.watched": 1},
        milestones={"50%": 1},
        leads_without_fields=1,
        known=3,
        arrived=1,
        erased=2,
        unknown={"older": 4},
        left={"view_open": 5},
        failed="key refused",
    )
    text = "\n".join(words(report, dry_run=True))
    for sentence in (
        "ended early: key refused\n",
        "3 events would be reconstructed: 2 lead.captured, 1 video.watched\n",
        "of video.watched: 1 at 50%\n",
        "1 lead without fields: the API has none\n",
        "3 events had been reconstructed before\n",
        "1 original arrived meanwhile\n",
        "2 refused, because they are about erased persons\n",
    ):
        assert sentence in text
    assert "(4)\nleft for the next run: " in text


def test_a_reason_of_a_later_version_is_told_by_its_name() -> None:
    assert "cannot be known: unheard_of (1)" in words(
        Report(unknown={"unheard_of": 1}), dry_run=False
    )
