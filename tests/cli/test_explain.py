"""`relay route` and `relay render`: routing and message of one event."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from relay.cli import main
from relay.core import sample_events
from relay.core.event import LEAD_CAPTURED

CONFIG = """
[[source]]
name = "main"
path = "/webhooks"
secrets = ["a-secret-of-sixteen-and-more"]

[[source]]
name = "second"
path = "/second"
secrets = ["a-secret-of-the-second-source"]

[[sink]]
name = "console"
type = "stdout"

[[sink]]
name = "a-sink-with-a-long-name"
type = "stdout"
events = ["video.*"]

[[sink]]
name = "big"
type = "stdout"
when = "length(data.email) > `100`"

[[sink]]
name = "odd"
type = "stdout"
when = "length(data.nothing) > `1`"

[[sink]]
name = "second"
type = "stdout"
sources = ["second"]

[[sink]]
name = "crm"
type = "http"
url = "https://crm.example/hook"
headers = { authorization = "Bearer of-no-bad-news" }
signing_secrets = ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]

[[sink]]
name = "sales"
type = "slack"
url = "https://hooks.slack.com/services/T000/B000/secretsecretsecret"
"""


ENRICHED = """
[source.api]
base_url = "https://api.example.com"
key = "an-api-key-of-the-tests"

[[sink]]
name = "enriched"
type = "http"
url = "https://crm.example/hook"
sources = ["second"]
enrich = true
"""


class Ran(NamedTuple):
    exit_code: int
    out: str
    err: str


Run = Callable[..., Ran]


@pytest.fixture
def run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run on a real stdout, because the stdout sink needs its descriptor."""
    (tmp_path / "config.toml").write_text(CONFIG, encoding="utf-8")
    (tmp_path / "lead.json").write_bytes(
        sample_events.event(LEAD_CAPTURED, event_id="evt_lead").body
    )

    def run(*arguments: str, event: str = "lead.json") -> Ran:
        files = ["--config", str(tmp_path / "config.toml"), "--event", str(tmp_path / event)]
        with pytest.raises(SystemExit) as exit_info:
            main([*arguments, *files])
        return Ran(exit_info.value.code, *capfd.readouterr())  # type: ignore[arg-type]

    return run


def test_every_sink_is_listed_with_its_verdict_and_reason(run: Run) -> None:
    result = run("route")
    assert result.exit_code == 0
    assert result.out.splitlines() == [
        "lead.captured evt_lead, as if received by source main",
        "SINK                     VERDICT   WHY",
        "console                  takes     events and sources match",
        "a-sink-with-a-long-name  declines  lead.captured matches nothing in events",
        "big                      declines  when is false: length(data.email) > `100`",
        (
            "odd                      fails     when failed: JMESPathTypeError; "
            "the delivery becomes a dead letter"
        ),
        "second                   declines  source main is not in sources",
        "crm                      takes     events and sources match",
        "sales                    takes     events and sources match",
    ]


def test_the_source_can_be_chosen(run: Run) -> None:
    document = json.loads(run("route", "--source", "second", "--json").out)
    assert (document["source"], document["id"]) == ("second", "evt_lead")
    verdicts = {each["sink"]: each["outcome"] for each in document["routes"]}
    assert verdicts["second"] == "takes"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "the body is not JSON"),
        (b"[]", "the body is not a JSON object"),
        (b'{"event":"x"}', "id is not a text"),
    ],
)
@pytest.mark.parametrize("command", [("route",), ("render", "--sink", "console")])
def test_a_body_without_an_event_is_a_one_line_error(
    run: Run, tmp_path: Path, command: tuple[str, ...], body: bytes, reason: str
) -> None:
    (tmp_path / "bad").write_bytes(body)
    result = run(*command, event="bad")
    assert result.exit_code == 1
    assert reason in result.err
    assert len(result.err.splitlines()) == 1
    assert result.out == ""


def test_the_line_of_the_stdout_sink_is_shown(run: Run) -> None:
    rendered = json.loads(run("render", "--sink", "console").out)
    assert json.loads(rendered["line"])["id"] == "evt_lead"


def test_a_message_is_shown_indented_or_as_one_line_of_json(run: Run) -> None:
    assert len(run("render", "--sink", "sales").out.splitlines()) > 5
    assert len(run("render", "--sink", "sales", "--json").out.splitlines()) == 1


@pytest.mark.parametrize("sink", ["crm", "sales"])
def test_no_secret_is_shown(run: Run, sink: str) -> None:
    result = run("render", "--sink", sink)
    assert result.exit_code == 0
    for secret in ("of-no-bad-news", "MfKQ9r8", "secretsecretsecret"):
        assert secret not in result.out + result.err


def test_a_sink_that_declines_is_rendered_with_a_remark(run: Run) -> None:
    result = run("render", "--sink", "big")
    assert result.exit_code == 0
    assert result.err.startswith("relay: big would not take this event: when is false")
    assert "evt_lead" in result.out


def test_a_value_that_is_looked_up_only_when_sending_is_named(run: Run, tmp_path: Path) -> None:
    assert "what the person has watched" not in run("render", "--sink", "crm").err
    with (tmp_path / "config.toml").open("a") as config:
        config.write(ENRICHED)
    result = run("render", "--sink", "enriched", "--source", "second")
    assert result.exit_code == 0
    assert result.err == (
        "relay: what the person has watched is asked when the message is sent, and not shown here\n"
    )


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("render", "--sink", "crn"), "no sink `crn`; expected one of: console, a-sink"),
        (("route", "--source", "third"), "no source `third`; expected one of: main, second"),
    ],
)
def test_an_unknown_name_lists_the_known_ones(
    run: Run, arguments: tuple[str, ...], text: str
) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert text in result.err


def test_all_faults_of_a_config_are_listed(run: Run, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(CONFIG.replace("url =", "uri ="), encoding="utf-8")
    result = run("route")
    assert result.exit_code == 78
    assert all(line.startswith("relay: ") for line in result.err.splitlines())
    assert len(result.err.splitlines()) >= 2
