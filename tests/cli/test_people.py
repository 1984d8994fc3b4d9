"""`relay erase` follows an erasure that takes longer, and says that it goes on."""

from typing import TYPE_CHECKING, Any, cast

import pytest

from relay.cli import people
from relay.core.errors import AdminApiError

if TYPE_CHECKING:
    from relay.cli.client import AdminClient


def erasure(share: float, ended_ms: int | None) -> dict[str, Any]:
    return {"id": 7, "events": round(100 * share), "share": share, "ended_ms": ended_ms}


class Relay:
    """Answers with these erasures, one after another; then it is away."""

    def __init__(self, *answers: dict[str, Any]) -> None:
        self._answers = iter(answers)

    def get(self, path: str) -> dict[str, Any]:
        assert path == "/people/erasures/7"
        answer = next(self._answers, None)
        if answer is None:
            raise AdminApiError("cannot connect to the relay")
        return answer


def follow(*answers: dict[str, Any]) -> dict[str, Any]:
    first, *rest = answers
    return people._followed(cast("AdminClient", Relay(*rest)), first)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(people, "POLL_INTERVAL_S", 0)


def test_the_command_shows_the_progress_until_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    assert follow(erasure(0.299, None), erasure(0.8, None), erasure(1, 5))["ended_ms"] == 5
    assert capsys.readouterr().err.splitlines() == [
        "Erasure 7: 29 % of the store is searched, 30 events are removed.",
        "Erasure 7: 80 % of the store is searched, 80 events are removed.",
    ]


def test_a_command_whose_relay_goes_away_says_that_the_erasure_goes_on() -> None:
    with pytest.raises(AdminApiError) as raised:
        follow(erasure(0.3, None), erasure(0.4, None))
    assert str(raised.value) == (
        "cannot connect to the relay. Erasure 7: 40 % of the store is searched, 40 events are "
        "removed. The erasure goes on in the relay; repeat the command to see how far it is."
    )


def test_a_report_of_an_older_relay_is_taken_as_it_is() -> None:
    assert follow({"events": 2}) == {"events": 2}
