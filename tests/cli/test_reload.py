"""`relay reload` on a running relay: documented output and exit codes."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.cli.scene import Scene
from tests.guarantees.process import Relay
from tests.operator import ADMIN, TOKEN

pytestmark = pytest.mark.servers

DOCUMENT = Path(__file__).parents[2] / "docs" / "operating.md"
CRM = '[[sink]]\nname = "crm"\ntype = "http"\nurl = "http://127.0.0.1:9/{}"\n'
BI = '[[sink]]\nname = "bi"\ntype = "http"\nurl = "http://127.0.0.1:9/bi"\n'


@pytest.fixture
async def relay(tmp_path: Path) -> AsyncIterator[Relay]:
    async with Relay(tmp_path, sinks=CRM.format(""), rest=ADMIN) as relay:
        await relay.start()
        yield relay


async def reload(relay: Relay, *options: str) -> tuple[int, str]:
    """Return the exit code and the output."""
    done = await Scene(relay.config.parent).invoke(" ".join(["reload", *options]))
    return done.exit_code, done.output


def edit(relay: Relay, before: str, after: str) -> None:
    text = relay.config.read_text(encoding="utf-8")
    assert before in text
    relay.config.write_text(text.replace(before, after), encoding="utf-8")


def assert_shown(printed: str) -> None:
    """Assert that the document has these lines, in this order."""
    assert printed in DOCUMENT.read_text(encoding="utf-8").replace("\n    ", "\n")


async def test_a_valid_config_is_loaded_and_the_changes_are_printed(relay: Relay) -> None:
    assert await reload(relay) == (0, "reloaded; nothing changed\n")
    edit(relay, CRM.format(""), BI + CRM.format("hook"))
    edit(relay, "[server]", '[server]\nmax_body = "2MiB"')
    code, printed = await reload(relay)
    assert code == 0
    assert_shown(printed)
    edit(relay, BI, "")
    edit(relay, '/hook"', '/hook"\nevents = ["lead.*"]')
    code, printed = await reload(relay)
    assert (code, printed) == (0, "reloaded\n  removed   sink bi\n  rerouted  sink crm\n")


async def test_a_refused_config_lists_all_faults_and_exits_with_1(relay: Relay) -> None:
    edit(relay, CRM.format(""), CRM.format("") + 'rate = "often"\ntimeut = "5s"\n')
    code, printed = await reload(relay)
    assert code == 1
    assert_shown(printed)
    code, printed = await reload(relay, "--json")
    assert code == 1
    assert json.loads(printed)["ok"] is False
    assert [fault["path"] for fault in json.loads(printed)["faults"]] == [
        "sink[0] (crm).rate",
        "sink[0] (crm).timeut",
    ]


async def test_a_change_that_needs_a_restart_is_refused_by_its_key(relay: Relay) -> None:
    edit(relay, f':{relay.port}"', ':9"')
    code, printed = await reload(relay)
    assert code == 1
    assert_shown(printed)


async def test_the_result_is_available_as_json(relay: Relay) -> None:
    edit(relay, CRM.format(""), "")
    code, printed = await reload(relay, "--json")
    assert code == 0
    verdict = json.loads(printed)
    assert (verdict["ok"], verdict["sinks"]["removed"]) == (True, ["crm"])


async def test_what_is_wrong_with_the_config_in_use_is_printed(relay: Relay) -> None:
    edit(relay, CRM.format(""), CRM.format("") + "when = 'event == \"lead.captured\"'\n")
    edit(relay, 'name = "crm"', 'name = "crm"\nevents = ["*", "lead.captures"]')
    code, printed = await reload(relay)
    assert code == 0
    fault, warning = printed.splitlines()[-2:]
    assert fault.startswith("  fault     sink[0] (crm).when: ")
    assert fault.endswith("; the next release refuses it")
    assert warning.startswith("  warning   sink[0] (crm).events")
    code, printed = await reload(relay, "--json")
    document = json.loads(printed)
    assert [each["path"] for each in document["mistakes"]] == ["sink[0] (crm).when"]
    assert len(document["warnings"]) == 1


async def test_invalid_toml_is_refused_without_a_request(relay: Relay) -> None:
    relay.config.write_text("half", encoding="utf-8")
    code, printed = await reload(relay)
    assert code == 1
    assert printed.startswith(f"the relay was not asked: {relay.config.name} has faults\n")
    assert "is not TOML" in printed
    assert await relay.is_ready()


async def test_a_new_token_needs_the_signal(relay: Relay) -> None:
    edit(relay, TOKEN, "another-token-of-the-tests")
    code, printed = await reload(relay)
    assert code == 1
    assert "SIGHUP" in printed


async def test_an_unreachable_relay_is_an_error(relay: Relay) -> None:
    await relay.stop()
    code, printed = await reload(relay)
    assert code == 1
    assert "cannot connect to the relay" in printed
