"""What a run's report counts, and what it tells the operator."""

import pytest

from relay.core.event import LEAD_CAPTURED, VIDEO_WATCHED, Event
from relay.reconciliation.reasons import WORDS
from relay.reconciliation.report import NAMED_MAX, About, RunReport, explained, words
from relay.store.reconstructions import ReconstructionOutcome


@pytest.mark.parametrize("outcome", ["known", "arrived", "erased"])
def test_an_event_that_was_not_made_is_counted_by_its_reason(
    lead: Event, outcome: ReconstructionOutcome
) -> None:
    report = RunReport()
    report.note(lead, outcome)
    assert report.values() == RunReport().values() | {outcome: 1}


def test_the_operator_reads_what_was_not_made_and_why() -> None:
    report = RunReport(
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


def test_nothing_is_said_of_what_left_no_doubt() -> None:
    assert words(RunReport(), dry_run=False) == ["0 events reconstructed"]


def test_a_report_names_what_was_given_back_and_what_could_not_be(lead: Event) -> None:
    report = RunReport()
    report.note(lead, "accepted")
    report.cannot_know("older", about=About(VIDEO_WATCHED, "bob@example.com", "vid_2", "Intro"))
    report.leave("form_recent", about=About(LEAD_CAPTURED, "eve@example.com", "vid_3", lead="l_9"))
    report.cannot_know("anonymous", count=3)
    made, unknown, left = map(explained, report.named)
    assert (made.outcome, made.event, made.person) == ("reconstructed", lead.id, lead.person())
    assert (made.lead, made.video) == (lead.document()["data"]["id"], lead.video_id())
    assert (unknown.person, unknown.title, unknown.why) == (
        "bob@example.com",
        "Intro",
        WORDS["older"],
    )
    assert (left.lead, left.outcome) == ("l_9", "left")
    assert RunReport.read(report.values()) == report
    assert "example.com" not in str(words(report, dry_run=False))


def test_a_report_names_a_bounded_number(lead: Event) -> None:
    report = RunReport()
    for _ in range(NAMED_MAX + 3):
        report.note(lead, "accepted")
    assert len(report.named) == NAMED_MAX
    assert report.events[lead.kind] == NAMED_MAX + 3


def test_a_report_forgets_a_person(lead: Event) -> None:
    report = RunReport()
    report.note(lead, "accepted")
    report.cannot_know("trash_gone", about=About("video.deleted", video="vid_1"))
    report.forget({str(lead.person())})
    assert [fact.kind for fact in report.named] == ["video.deleted"]


def test_a_reason_of_a_later_version_is_told_by_its_name() -> None:
    assert "cannot be known: unheard_of (1)" in words(
        RunReport(unknown={"unheard_of": 1}), dry_run=False
    )
