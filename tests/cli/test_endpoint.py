"""`relay endpoint` manages the webhook endpoint of a real sandbox."""

import json
import stat
from pathlib import Path

import orjson
import pytest

from relay.core.event import KINDS, WEBHOOK_TEST
from tests.cli.scene import Scene
from tests.cli.sender import HOOK, Developer, developing, receiving
from tests.stub_server import Reply, Request, StubServer, until

pytestmark = pytest.mark.servers

SINK = '[[sink]]\nname = "{}"\ntype = "http"\nurl = "https://crm.example"\nevents = [{}]\n{}'


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


NOT_FOUND = """\
relay: the video service's API: not found
relay: check `endpoint` and `base_url` of its [source.api]
"""


async def test_register_keeps_the_secret_and_says_what_to_put_into_the_config(
    tmp_path: Path, developer: Developer
) -> None:
    developer.write()
    done = await developer.run(
        f"endpoint register --url {HOOK} --events lead.captured,video.watched --secret-file secret"
    )
    ((endpoint, record),) = developer.served.sandbox.workspace.endpoints.items()
    assert done.exit_code == 0
    assert (record.url, record.events) == (HOOK, ["lead.captured", "video.watched"])
    assert developer.secret.read_text(encoding="utf-8") == f"{record.secret}\n"
    assert mode(developer.secret) == 0o600
    assert record.secret not in done.output
    lines = done.output.splitlines()
    assert lines[0] == f"main: registered {endpoint}, receives lead.captured, video.watched"
    assert f'  secrets = ["file:{developer.secret}"]' in lines
    assert f'  endpoint = "{endpoint}"' in lines
    assert {path.name for path in tmp_path.iterdir()} == {"config.toml", "secret"}


async def test_register_refuses_a_file_that_it_cannot_write_before_it_asks(tmp_path: Path) -> None:
    (tmp_path / "full").write_text("the-secret-of-another-endpoint", encoding="utf-8")
    (tmp_path / "link").symlink_to(tmp_path / "full")
    async with developing(tmp_path) as developer:
        developer.write()
        for path, cause in (
            ("full", "exists already"),
            ("link", "exists already"),
            (".", "exists already"),
            ("missing/secret", "No such file or directory"),
            ("/proc/secret", "cannot be written"),
            ("/", "is not the path of a file"),
        ):
            done = await developer.run(f"endpoint register --url {HOOK} --secret-file {path}")
            assert (done.exit_code, cause in done.output) == (1, True), done.output
            assert done.output.rstrip().endswith("nothing was changed")
        assert developer.served.sandbox.workspace.endpoints == {}
    assert (tmp_path / "full").read_text(encoding="utf-8") == "the-secret-of-another-endpoint"


async def test_a_refused_registration_leaves_nothing(tmp_path: Path, developer: Developer) -> None:
    developer.is_admin = False
    developer.write()
    done = await developer.run(f"endpoint register --url {HOOK} --secret-file secret")
    assert done.exit_code == 1
    assert done.output.startswith("relay: the video service's API: no access\n")
    assert [path.name for path in tmp_path.iterdir()] == ["config.toml"]


async def test_the_secret_is_in_its_file_before_anything_else_can_fail(tmp_path: Path) -> None:
    def reply(request: Request) -> Reply:
        if request.method == "GET":
            assert (tmp_path / "secret").read_text(encoding="utf-8") == "whsec_new\n"
            return Reply(500)
        return Reply(201, orjson.dumps({"secret": "whsec_new"}))

    (tmp_path / "secret").touch()
    async with StubServer() as destination:
        destination.reply = reply
        (tmp_path / "config.toml").write_text(
            f'[[source]]\nname = "main"\n[source.api]\nbase_url = "{destination.url()}"\n'
            'key = "key_of_the_tests_0123456789"\n',
            encoding="utf-8",
        )
        done = await Scene(tmp_path).invoke(
            f"endpoint register --url {HOOK} --secret-file secret --json"
        )
    assert done.exit_code == 0
    assert json.loads(done.output)["webhook"] is None


async def test_an_answer_without_a_secret_says_that_the_endpoint_may_be_there(
    developer: Developer,
) -> None:
    developer.write()
    await developer.served.control("answers", {"drop": ["secret"]})
    done = await developer.run(f"endpoint register --url {HOOK} --secret-file secret")
    assert done.exit_code == 1
    assert "broken answer" in done.output
    assert "may have been created nevertheless" in done.output
    assert not developer.secret.exists()


async def test_another_endpoint_with_the_same_url_is_named(developer: Developer) -> None:
    first = await developer.register()
    done = await developer.run(f"endpoint register --url {HOOK} --secret-file other")
    assert f"{first} has the same URL" in done.output


async def test_an_endpoint_is_shown_tested_and_removed(tmp_path: Path) -> None:
    async with developing(tmp_path) as developer, StubServer() as destination:
        endpoint = await developer.register(destination.url("/webhooks"))
        shown = await developer.run("endpoint show")
        assert [line.split() for line in shown.output.splitlines()] == [
            ["main:"],
            ["id", endpoint],
            ["url", destination.url("/webhooks")],
            ["events", "all", "events"],
        ]
        assert (await developer.run("endpoint deliveries")).output == "no attempt yet\n"
        tested = json.loads((await developer.run("endpoint test --json")).output)
        await until(lambda: len(destination.requests) == 1, what="the test")
        assert orjson.loads(destination.requests[0].body)["id"] == tested["event_id"]
        attempts = developer.served.sandbox.workspace.attempts
        await until(lambda: attempts[-1].state == "delivered", what="the end of the attempt")
        (line,) = (await developer.run("endpoint deliveries --json")).output.splitlines()
        (attempt,) = json.loads(line)["deliveries"]
        assert (attempt["event"], attempt["state"], attempt["status"]) == (
            WEBHOOK_TEST,
            "delivered",
            200,
        )
        assert "webhook.test" in (await developer.run("endpoint deliveries")).output
        removed = await developer.run("endpoint remove")
        assert removed.output.startswith(f"main: removed {endpoint}\n")
        assert developer.served.sandbox.workspace.endpoints == {}
        gone = await developer.run("endpoint show")
        assert (gone.exit_code, gone.output) == (
            1,
            NOT_FOUND,
        )


async def test_a_removal_is_told_to_the_relay_and_its_status_says_that_nothing_can_arrive(
    developer: Developer,
) -> None:
    async with receiving(developer) as (_, endpoint):
        before = json.loads((await developer.run("status --json")).output)
        removed = await developer.run("endpoint remove")
        after = json.loads((await developer.run("status --json")).output)
        (change,) = json.loads((await developer.run("audit list --json")).output)["changes"]
        text = (await developer.run("status")).output
        config = developer.config.read_text(encoding="utf-8")
        developer.config.write_text(config.replace(endpoint, "wh_none"), encoding="utf-8")
        await developer.run("reload")
        replaced = json.loads((await developer.run("status --json")).output)
    assert "The relay's status shows it until events come again." in removed.output
    assert before["problems"] == []
    (problem,) = after["problems"]
    what = "nothing can arrive at source main: its webhook endpoint was removed"
    assert (problem["severity"], problem["what"]) == ("ticket", what)
    assert problem["since_ms"] == after["sources"][0]["removed_ms"] == change["begun_ms"]
    assert what in text
    assert (change["operation"], change["target"]) == ("note_endpoint", "main")
    assert change["asked"] == {"change": "removed", "endpoint": endpoint}
    assert replaced["problems"] == []


async def test_a_registration_ends_the_finding_of_a_removal(developer: Developer) -> None:
    async with receiving(developer) as (relay, _):
        await developer.run("endpoint remove")
        assert (await developer.run("status")).exit_code == 1
        await developer.run(f"endpoint register --url {relay.url} --secret-file another")
        assert (await developer.run("status")).exit_code == 0


async def test_a_removal_without_a_relay_says_that_its_status_will_not_show_it(
    developer: Developer,
) -> None:
    await developer.register()
    removed = await developer.run("endpoint remove")
    assert removed.exit_code == 0
    assert "The running relay was not notified, so its status does not show it: " in removed.output


@pytest.mark.parametrize(
    ("url", "is_warned"),
    [
        ("http://hooks.example.com/webhooks", True),
        ("http://8.8.8.8/webhooks", True),
        ("http://[2606:4700::1111]/webhooks", True),
        ("https://hooks.example.com/webhooks", False),
        ("http://127.0.0.1:8080/webhooks", False),
        ("http://10.0.0.7/webhooks", False),
        ("http://relay:8080/webhooks", False),
        ("http://relay.internal/webhooks", False),
    ],
)
async def test_a_public_url_without_tls_is_warned_of(
    url: str, is_warned: bool, developer: Developer
) -> None:
    developer.write()
    done = await developer.run(f"endpoint register --url {url} --secret-file secret")
    assert done.exit_code == 0, done.output
    assert ("warning: the URL is not https" in done.output) == is_warned


async def test_events_are_shown_and_changed(developer: Developer) -> None:
    endpoint = await developer.register()
    events = developer.served.sandbox.workspace.endpoints[endpoint].events
    shown = await developer.run("endpoint events")
    assert shown.output == f"main: {endpoint} receives all events\n"
    await developer.run("endpoint events --set lead.captured,video.ready")
    assert developer.served.sandbox.workspace.endpoints[endpoint].events == [
        "lead.captured",
        "video.ready",
    ]
    await developer.run("endpoint events --set all")
    assert developer.served.sandbox.workspace.endpoints[endpoint].events == events == []


async def test_events_come_from_the_sinks(developer: Developer) -> None:
    developer.rest = SINK.format("a", '"video.*"', "") + SINK.format(
        "b", '"lead.captured", "webhook.test"', 'sources = ["main"]\n'
    )
    endpoint = await developer.register()
    done = await developer.run("endpoint events --from-sinks")
    assert done.exit_code == 0, done.output
    kinds = developer.served.sandbox.workspace.endpoints[endpoint].events
    assert kinds == [kind for kind in KINDS if kind != WEBHOOK_TEST]
    done = await developer.run("endpoint events --set video.ready")
    assert "sinks also want video.created, video.failed" in done.output
    developer.rest = SINK.format("all", '"*"', "")
    developer.write(endpoint)
    await developer.run("endpoint events --from-sinks")
    assert developer.served.sandbox.workspace.endpoints[endpoint].events == []


async def test_an_empty_list_of_kinds_does_not_mean_all_kinds(developer: Developer) -> None:
    developer.rest = SINK.format("a", '"webhook.test"', "")
    endpoint = await developer.register(more=" --events lead.captured")
    done = await developer.run("endpoint events --from-sinks")
    assert done.exit_code == 1
    assert "no sink takes an event of source main" in done.output
    for text, fault in (
        ("", '"" is no kind. Expected `all`, or of: video.created'),
        (",", '"" is no kind. Expected'),
        ("leads.captured", '"leads.captured" is no kind; did you mean lead.captured? Expected'),
        ("webhook.test", '"webhook.test" is no kind'),
        ("all,video.ready", "`all` excludes other kinds"),
    ):
        done = await developer.run(f"endpoint events --set={text}")
        assert (done.exit_code, fault in done.output) == (2, True), done.output
    events = developer.served.sandbox.workspace.endpoints[endpoint].events
    assert events == ["lead.captured"]


async def test_a_refusal_of_the_api_comes_with_its_remedy(developer: Developer) -> None:
    endpoint = await developer.register()
    developer.is_admin = False
    developer.write(endpoint)
    done = await developer.run("endpoint show")
    assert "no access\nrelay: give its [source.api] a `key` with the access Admin" in done.output
    developer.is_admin = True
    developer.write("wh_none")
    done = await developer.run("endpoint show")
    assert "not found\nrelay: check `endpoint` and `base_url` of its [source.api]" in done.output
    text = developer.config.read_text(encoding="utf-8")
    developer.config.write_text(text.replace('key = "', 'key = "x'), encoding="utf-8")
    done = await developer.run("endpoint show")
    assert "key refused\nrelay: check `key` of its [source.api]" in done.output


async def test_a_missing_api_or_endpoint_is_named(developer: Developer) -> None:
    developer.write()
    for command, message in (
        ("endpoint show", "has no endpoint; put in the id"),
        ("endpoint show --source other", "source other has no [source.api]; the sources with"),
    ):
        done = await developer.run(command)
        assert (done.exit_code, message in done.output) == (1, True), done.output
    text = developer.config.read_text(encoding="utf-8")
    developer.config.write_text(text.replace("[source.api]", "[source.ap]"), encoding="utf-8")
    assert "no source has a [source.api]" in (await developer.run("endpoint show")).output
    developer.config.write_text(text + text.replace('"main"', '"b"'), encoding="utf-8")
    assert "give --source, one of: main, b" in (await developer.run("endpoint show")).output
    developer.config.write_text(text.replace("http://", "ftp://"), encoding="utf-8")
    done = await developer.run("endpoint show")
    assert (done.exit_code, "api.base_url: expected a URL" in done.output) == (78, True)
