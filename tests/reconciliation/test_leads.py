"""Forms without a lead in the store."""

from relay.core.event import LEAD
from relay.reconciliation import envelope
from relay.reconciliation.leads import forms_without_lead
from relay.reconciliation.views import SentForm
from relay.store.reconstructions import ReachedStep
from relay.video_service.api.records import Submission
from tests.conftest import NOW_MS

ADA = "ada@example.com"
MINUTE_MS = 60_000


def form(minutes: int = 0, *, email: str | None = ADA, name: str | None = "lead_1") -> SentForm:
    at_ms = NOW_MS + minutes * MINUTE_MS
    return SentForm(
        "vid_1", "Tour", Submission(id=name, email=email, created_ms=at_ms), at_ms, at_ms
    )


def received(*minutes: int) -> dict[tuple[str, str], list[ReachedStep]]:
    return {(ADA, "vid_1"): [ReachedStep(LEAD, NOW_MS + each * MINUTE_MS) for each in minutes]}


def test_a_form_without_a_lead_is_forms_without_lead() -> None:
    assert forms_without_lead([form()], {}) == [form()]


def test_a_lead_that_came_while_the_sender_tried_belongs_to_its_form() -> None:
    assert forms_without_lead([form(email=" ADA@example.com ")], received(0)) == []
    assert forms_without_lead([form()], received(11)) == []
    assert forms_without_lead([form()], received(30)) == [form()]
    assert forms_without_lead([form()], received(-30)) == [form()]


def test_a_lead_belongs_to_one_form_only() -> None:
    assert forms_without_lead([form(0), form(1)], received(0)) == [form(1)]
    assert forms_without_lead([form(0), form(1)], received(1, 1)) == []


def test_a_form_without_an_address_is_not_a_lead() -> None:
    assert forms_without_lead([form(email=None), form(email=" ")], {}) == []


def test_a_reconstructed_lead_has_what_the_form_says() -> None:
    event = envelope.lead("main", form(), NOW_MS)
    document = event.document()
    assert document["reconstructed"] is True
    assert document["id"] == event.id
    assert document["data"]["id"] == "lead_1"
    assert document["data"]["fields"] == {}


def test_a_lead_belongs_to_the_form_with_its_id_whatever_the_times_say() -> None:
    lost, arrived = form(0, name="lead_1"), form(1, name="lead_2")
    known = {(ADA, "vid_1"): [ReachedStep(LEAD, NOW_MS + MINUTE_MS, "lead_2")]}
    assert forms_without_lead([lost, arrived], known) == [lost]
    assert forms_without_lead([form(-600, name="lead_2")], known) == []


def test_a_lead_without_an_id_belongs_to_a_form_within_the_time_that_its_sender_tries() -> None:
    assert forms_without_lead([form()], received(30), give_up_ms=30 * MINUTE_MS) == []


def test_of_two_forms_without_ids_the_one_nearest_to_the_lead_was_received() -> None:
    lost, arrived = form(0, name=None), form(10, name=None)
    assert forms_without_lead([lost, arrived], received(11)) == [lost]


def test_a_form_that_is_listed_twice_is_received_by_one_lead() -> None:
    known = {(ADA, "vid_1"): [ReachedStep(LEAD, NOW_MS, "lead_1")]}
    assert forms_without_lead([form(), form()], known) == []


def test_a_form_without_a_time_may_have_been_sent_until_its_view_ended() -> None:
    untimed = form(name=None)._replace(until_ms=NOW_MS + 60 * MINUTE_MS)
    assert forms_without_lead([untimed], received(65)) == []
    assert forms_without_lead([untimed], received(90)) == [untimed]
