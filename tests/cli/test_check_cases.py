"""What `relay check-config` says of configs that do nothing, or are unsafe, trial by trial."""

import contextlib
import json
import os
import pwd
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from relay import config
from relay.app import reload
from relay.cli.check import check_config
from relay.store.sqlite import disk, preflight
from tests import service

GOOD = "k3Jd8sLq0Zx7Vb2Nm5Tr9Wy4"
SIGNING = "whsec_bWFrZSBpdCB3aXRoIG9wZW5zc2wgcmFuZA=="
SOURCE = '[[source]]\nname = "main"\npath = "/webhooks"\nsecrets = [{secret}]\n'
STDOUT = '[[sink]]\nname = "out"\ntype = "stdout"\n'
HTTP = '[[sink]]\nname = "crm"\ntype = "http"\nurl = "https://crm.invalid/hook"\n'
ENVIRON = {"RELAY_SECRET": GOOD, "CRM_AUTH": "Bearer marked-token", "PLAIN": GOOD}

READ_AS_NAME = "is read as a name, which no event has: write "
TO_EXPAND = 'although the environment has CRM_AUTH: write "env:CRM_AUTH"'
LOOKS_LIKE = (
    'looks like a reference, but is taken as the value itself: write "env:NAME" or "file:/path"'
)
INSIDE = "holds a reference to the variable CRM_AUTH inside other text, where none is resolved"
ENDS = "ends with a "


class Case(NamedTuple):
    """A part of a config, and what is said of it: a fault ends the check with 1."""

    text: str
    fault: str | None = None
    warning: str | None = None
    note: str | None = None


def rule(when: str, *, events: str = '["*"]', **says: str) -> Case:
    return Case(f"{STDOUT}events = {events}\nwhen = {json.dumps(when)}\n", **says)


NO_SAMPLE = "no sample matches its `when`"

RULES = [
    # A text in double quotes is a name.
    rule('event == "lead.captured"', fault=f"lead.captured {READ_AS_NAME}'lead.captured'"),
    rule('event != "lead.captured"', fault=f"lead.captured {READ_AS_NAME}'lead.captured'"),
    rule('"lead.captured" == event', fault=f"lead.captured {READ_AS_NAME}'lead.captured'"),
    rule('data.milestone == "completed"', fault=f"completed {READ_AS_NAME}'completed'"),
    rule('data.progress >= "50"', fault=f"50 {READ_AS_NAME}`50`"),
    rule('starts_with(event, "video")', fault=f"video {READ_AS_NAME}'video'"),
    rule('data.fields.plan == "gold"', fault=f"gold {READ_AS_NAME}'gold'"),
    rule('"lead.captured"', fault=f"lead.captured {READ_AS_NAME}'lead.captured'"),
    rule('data.viewer.email == "a@b.test"', fault="a text without single quotes is read as a name"),
    # A text without quotes.
    rule("event == lead.captured", fault=f"lead.captured {READ_AS_NAME}'lead.captured'"),
    rule("data.milestone == completed", fault=f"completed {READ_AS_NAME}'completed'"),
    rule("data.completed == true", fault=f"true {READ_AS_NAME}`true`"),
    rule("lead.captured", fault=f"lead.captured {READ_AS_NAME}'lead.captured'"),
    rule("contains(event, lead)", fault=f"lead {READ_AS_NAME}'lead'"),
    # Names that the envelope does not have.
    rule("type == 'lead.captured'", fault="no event has the name type; did you mean event?"),
    rule("kind == 'lead.captured'", fault="no event has the name kind; did you mean event?"),
    rule("evnt == 'lead.captured'", fault="no event has the name evnt; did you mean event?"),
    rule("milestone == 'completed'", fault="did you mean data.milestone?"),
    rule("email", fault="did you mean data.viewer.email or data.email?"),
    rule("created_at > '2026'", fault="did you mean createdAt?"),
    rule("payload.milestone", fault="no event has the name payload; did you mean data?"),
    rule("source == 'main'", fault="the sources of a sink are its key `sources`"),
    rule("topic == 'x'", fault="no event has the name topic; its names are id, event, createdAt"),
    rule("@ | type", fault="no event has the name type; did you mean event?"),
    # Values that stand alone, and such that are compared with each other.
    rule("'event' == 'lead.captured'", fault="compares two fixed values, whatever the event"),
    rule("event == 'lead.captured' || 'video.watched'", fault="'video.watched' alone is always"),
    rule("'lead.captured'", fault="'lead.captured' alone is always true"),
    rule("!data.completed", fault="! stands for the first name after it only"),
    rule("event == 'lead.captured' | data.email", fault="| passes on true or false, which holds"),
    # Functions.
    rule("contains(event)", fault="contains() takes 2 arguments, not 1"),
    rule("length(data, event)", fault="length() takes 1 argument, not 2"),
    rule("not_null()", fault="not_null() takes 1 or more arguments, not 0"),
    rule("startswith(event, 'video')", fault="unknown function startswith(); did you mean starts"),
    rule("length(data.nothing) > `1`", warning="no event of the video service has data.nothing"),
    # Values and names that no documented event has: another kind of event may.
    rule("event == 'lead.capture'", warning="'lead.capture' is no kind of the video service; did"),
    rule("data.milestone == 'complete'", warning="'complete' is no milestone of the video service"),
    rule("data.vidoe.id == 'a'", warning="no event of the video service has data.vidoe; did you"),
    rule("data | vidoe", warning="no event of the video service has data.vidoe; did you mean vid"),
    rule("event.kind == 'a'", warning="event holds no names, so event.kind is never found"),
    rule("data.progress == '50'", warning="a number, which never equals a text: write `50` in"),
    rule("data.completed == 'true'", warning="never equals a text: write `true` in backticks"),
    rule("data.title == `5`", warning="a text, which never equals a number: write '5' in single"),
    rule("event == 'video.*'", warning="'video.*' is no kind of the video service; a comparison"),
    rule("data.video == 'Tour'", warning="data.video holds names, and never equals a text: comp"),
    rule("data.milestone > `5`", warning="fails on samples of video.watched"),
    # No sample matches, which may be right.
    rule("data.fields.budget == 'high'", note=NO_SAMPLE),
    rule("data.title == 'Our own film'", note=NO_SAMPLE),
    rule("data.milestone", events='["lead.captured"]', note=NO_SAMPLE),
    # Good ones.
    rule("event == 'lead.captured' || data.milestone == 'completed'"),
    rule('event == `"lead.captured"`'),
    rule("\"event\" == 'lead.captured'"),
    rule("@.event == 'lead.captured'"),
    rule("(data.viewer || data).email"),
    rule("not_null(data.viewer.email, data.email)"),
    rule("contains(['lead.captured', 'video.failed'], event)"),
    rule("data.progress >= `50` && !(data.completed)"),
    rule("data.fields.\"jobTitle\" == 'CTO'"),
    rule("length(data.fields || `{}`) > `2`"),
    rule("data | video.id"),
    rule("data.{a: video.id}.a"),
    rule("data.trashed == `false` || data.errorMessage != `null`"),
    rule("createdAt > '2026'"),
    rule("to_string(data.progress) == '50'"),
    rule("ends_with(event, 'captured')"),
]


def header(value: str, **says: str) -> Case:
    return Case(f"{HTTP}headers = {{ authorization = {json.dumps(value)} }}\n", **says)


def oauth2(url: str, secret: str, **says: str) -> Case:
    keys = f'token_url = "{url}"\nclient_id = "relay"\nclient_secret = "{secret}"\n'
    return Case(f"{HTTP}[sink.oauth2]\n{keys}", **says)


def signing(value: str, **says: str) -> Case:
    return Case(f"{HTTP}signing_secrets = [{json.dumps(value)}]\n", **says)


REFERENCES = [
    header("ENV:CRM_AUTH", fault=TO_EXPAND),
    header("Env:CRM_AUTH", fault=TO_EXPAND),
    header("env.CRM_AUTH", fault=TO_EXPAND),
    header("env=CRM_AUTH", fault=TO_EXPAND),
    header("$CRM_AUTH", fault=TO_EXPAND),
    header("${CRM_AUTH}", fault=TO_EXPAND),
    header("%CRM_AUTH%", fault=TO_EXPAND),
    header("$env:CRM_AUTH", fault=TO_EXPAND),
    header("{{ env.CRM_AUTH }}", fault=TO_EXPAND),
    header("CRM_AUTH", fault=TO_EXPAND),
    header("{folder}/kept", fault="although the file {folder}/kept exists: write "),
    header("FILE:{folder}/kept", fault='exists: write "file:{folder}/kept"'),
    header("@{folder}/kept", fault='exists: write "file:{folder}/kept"'),
    header("Bearer env:CRM_AUTH", fault=INSIDE),
    header("Bearer ENV:CRM_AUTH", fault=INSIDE),
    header("Bearer $CRM_AUTH", fault=INSIDE),
    header("Bearer ${CRM_AUTH}", fault=INSIDE),
    header("Bearer file:{folder}/kept", fault="seems to hold a reference inside other text"),
    header("Bearer env:CRM_AUHT", warning="seems to hold a reference inside other text"),
    header("ENV:CRM_AUHT", warning=LOOKS_LIKE),
    header("$CRM_AUHT", warning=LOOKS_LIKE),
    header("/run/secrets/crm-of-no-one", warning="looks like the path of a file, but is taken as"),
    header("Bearer changeme", warning="is a placeholder: expected the real value"),
    header("Bearer <your token>", warning="is a placeholder: expected the real value"),
    oauth2("https://idp.example/", "changeme", warning="is a placeholder: expected the real value"),
    oauth2("http://idp.example/", GOOD, warning="oauth2.token_url: is not https: secret and token"),
    oauth2("https://idp.example/", "ENV:CRM_AUTH", fault=TO_EXPAND),
    Case(f"{HTTP}success = 'status == \"ok\"'\n", warning="success: compares two names"),
    oauth2("https://idp.example/", "{{ id }} of us", warning="looks like a template, but is sent"),
    header("Bearer {{ id }}"),
    header("{{ event }}"),
    header("Bearer $CRM_AUTH {{ id }}", fault=INSIDE),
    Case(HTTP.replace("/hook", "/{{ event }}")),
    Case(HTTP.replace("/hook", "/${CRM_AUTH}/{{ event }}"), fault=INSIDE),
    Case(
        STDOUT + '[server]\ntrusted_proxies = ["10.0.0.0/8", "::/0"]\n',
        warning="server.trusted_proxies[1]: trusts every address",
    ),
    header("env:CRM_AUTH"),
    header("file:{folder}/kept"),
    header("Bearer a$B/c.environment"),
    header("Basic /ab+cd/ef=="),
    Case(HTTP.replace("/hook", "/${CRM_AUTH}"), fault=INSIDE),
    Case(HTTP.replace("/hook", "/?key=$CRM_AUTH"), fault=INSIDE),
    Case(STDOUT + '[store]\npath = "${CRM_AUTH}/r.db"\n', fault="which the relay does not expand"),
    Case(
        STDOUT + '[store]\npath = "~/relay.db"\n', fault="begins with ~, which the relay does not"
    ),
    Case(STDOUT + '[store]\npath = "env:CRM_AUTH"\n', fault="for this key takes no references"),
    Case(STDOUT + '[store]\npath = "env:CRM_AUHT"\n', warning="for this key takes no references"),
]

SECRETS = [
    signing("abc", fault="is too short for a secret: expected 8 bytes or more"),
    signing("changeme", fault="is a placeholder: expected the real secret"),
    signing("$CRM_SIGNING", fault="is a placeholder: expected the real secret"),
    signing("whsec_" + "A" * 32, fault="repeats one character: expected the real secret"),
    signing("twelve+bytes", warning="is short: a good secret has 16 bytes or more"),
    signing("abcdefgh" * 4, warning="is easy to guess, because it repeats a part"),
    signing("1234567890123456789", warning="is easy to guess, because it is a row of neighbouring"),
    signing("abaabbbaabababbaabba", warning="because it has only 2 different characters"),
    signing(SIGNING),
    signing("env:PLAIN"),
]


def slack(url: str, **says: str) -> Case:
    return Case(f'[[sink]]\nname = "sales"\ntype = "slack"\nurl = "{url}"\n', **says)


FLOW = "workflows/1f/triggers/manual/paths/invoke?api-version=1&sig=marked"
NOT_SLACK = "url: is an address of {}, not of Slack"
POWER_AUTOMATE = NOT_SLACK.format("Power Automate, the workflows of Teams")
LOGIC_APPS = NOT_SLACK.format("Power Automate or Azure Logic Apps")
TEAMS = NOT_SLACK.format("Microsoft Teams")
ADDRESSES = [
    slack(
        f"https://a1.04.environment.api.powerplatform.com:443/powerautomate/automations/{FLOW}",
        warning=POWER_AUTOMATE,
    ),
    slack(f"https://prod-08.westeurope.logic.azure.com:443/{FLOW}", warning=LOGIC_APPS),
    slack(f"https://PROD-08.westeurope.LOGIC.azure.com.:443/{FLOW}", warning=LOGIC_APPS),
    slack("https://clips.webhook.office.com/webhookb2/marked/IncomingWebhook/1/2", warning=TEAMS),
    slack("https://outlook.office.com/webhook/marked/IncomingWebhook/1/2", warning=TEAMS),
    slack(
        "https://chat.googleapis.com/v1/spaces/S/messages?key=k&token=marked",
        warning=NOT_SLACK.format("Google Chat"),
    ),
    slack("https://hooks.zapier.com/hooks/catch/1/marked", warning=NOT_SLACK.format("Zapier")),
    slack("https://hooks.slack.com/services/T0/B0/marked"),
    slack("https://hooks.slack.com/workflows/T0/A0/1/marked"),
    slack("https://hooks.slack-gov.com/services/T0/B0/marked"),
    slack("https://discord.com/api/webhooks/1/marked/slack"),
    slack("https://mattermost.invalid/hooks/marked"),
    slack("http://127.0.0.1:8065/hooks/logic.azure.com"),
    slack("https://notlogic.azure.com/marked"),
    # Any service is right behind a sink that does not write for Slack.
    Case(HTTP.replace("crm.invalid/hook", "prod-08.westeurope.logic.azure.com/hook")),
]

TEXTS = {
    f'"{GOOD}"': "is in quotes, which count: remove them where the value is kept",
    f"'{GOOD}'": "is in quotes, which count",
    f"\u201c{GOOD}\u201d": "is in quotes, which count",
    f"RELAY_SECRET={GOOD}": 'begins with a name and "=", which count: keep only what follows',
    f"export RELAY_SECRET={GOOD}": 'begins with a name and "=", which count',
    f"{GOOD}\r": f"{ENDS}carriage return of a Windows line end, which counts",
    f"{GOOD}\n": f"{ENDS}line break, which counts",
    f" {GOOD}": "starts or ends with white space, which counts",
    f"{GOOD}\u200b": "holds an invisible character (U+200B, zero width space)",
    f"\ufeff{GOOD}": "holds an invisible character (U+FEFF, zero width no-break space)",
    f"{GOOD[:9]}\u00a0{GOOD[9:]}": "holds an invisible character (U+00A0, no-break space)",
    f"{GOOD[:9]}\x1b{GOOD[9:]}": "holds an invisible character (U+001B, control character)",
    f"{GOOD}==": None,
    f"OTHER={GOOD}": None,
}


class Ran(NamedTuple):
    exit_code: int
    output: str


def checked(folder: Path, text: str, capfd: pytest.CaptureFixture[str], *arguments: str) -> Ran:
    file = folder / "config.toml"
    file.write_text(text, encoding="utf-8")
    code = check_config.main(["--config", str(file), *arguments], standalone_mode=False)
    return Ran(code, capfd.readouterr().out)


def configured(case: Case, folder: Path) -> str:
    secret = '"env:RELAY_SECRET"'
    return SOURCE.replace("{secret}", secret) + case.text.replace("{folder}", str(folder))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, value in ENVIRON.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "kept").write_text(f"{ENVIRON['CRM_AUTH']}\n")
    return tmp_path


@pytest.mark.parametrize(
    "case", [*RULES, *REFERENCES, *SECRETS, *ADDRESSES], ids=lambda case: case.text[37:]
)
def test_a_trial_is_answered_with_what_is_wrong(
    folder: Path, capfd: pytest.CaptureFixture[str], case: Case
) -> None:
    result = checked(folder, configured(case, folder), capfd)
    faults = re.findall(r"config\.toml: (\S+ ?\S*: .*)", result.output)
    warnings = re.findall(r"^  warning    (.*)", result.output, re.MULTILINE)
    notes = re.findall(r"^  note       (.*)", result.output, re.MULTILINE)
    for said, expected in ((faults, case.fault), (warnings, case.warning), (notes, case.note)):
        wanted = expected and expected.replace("{folder}", str(folder))
        assert (wanted is None) or any(wanted in line for line in said), result.output
    assert result.exit_code == (case.fault is not None), result.output
    if case[1:] == (None, None, None):
        assert not faults, result.output
        assert not warnings, result.output
    assert "marked" not in result.output
    assert "a@b.test" not in result.output


@pytest.mark.parametrize(("value", "expected"), TEXTS.items(), ids=range(len(TEXTS)))
def test_what_env_files_leave_in_a_secret_is_a_warning(
    folder: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    value: str,
    expected: str | None,
) -> None:
    monkeypatch.setenv("RELAY_SECRET", value)
    result = checked(folder, configured(Case(STDOUT), folder), capfd)
    assert result.exit_code == 0
    found = re.findall(
        r"^  warning    source\[0\] \(main\)\.secrets\[0\]: (.*)", result.output, re.MULTILINE
    )
    assert len(found) == (expected is not None), result.output
    assert expected is None or found[0].startswith(expected)
    assert GOOD[:9] not in result.output


def test_a_reference_behind_a_reference_is_a_fault(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRM_HEADER", "env:CRM_AUTH")
    result = checked(folder, configured(header("env:CRM_HEADER"), folder), capfd)
    assert result.exit_code == 1
    assert TO_EXPAND in result.output


def test_a_file_with_a_name_before_the_secret_is_a_warning(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "env").write_text(f"RELAY_SECRET={GOOD}\n")
    text = SOURCE.replace("{secret}", f'"file:{folder}/env"') + STDOUT
    result = checked(folder, text, capfd)
    assert 'secrets[0]: begins with a name and "=", which count' in result.output
    assert GOOD not in result.output


def test_a_text_that_explains_a_fault_is_said_with_it(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRM_URL", '"https://crm.invalid/marked"')
    url = HTTP.replace("https://crm.invalid/hook", "env:CRM_URL")
    result = checked(folder, configured(Case(url), folder), capfd)
    assert result.exit_code == 1
    key = f"{folder}/config.toml: sink[0] (crm).url"
    assert result.output.splitlines() == [
        f"{key}: expected http:// or https:// and a host",
        f"{key}: is in quotes, which count: remove them where the value is kept",
    ]


def test_mistakes_are_said_with_the_faults_that_refuse_a_config(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    case = rule('event == "lead.captured"')
    result = checked(folder, configured(case, folder) + '[log]\nlevel = "loud"\n', capfd)
    keys = re.findall(r"config\.toml: (\S+(?: \S*\)\S*)?): ", result.output)
    assert keys == ["log.level", "sink[0] (out).when"]


def test_the_verdict_counts_what_was_found(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for case, verdict in (
        (Case(STDOUT), "good"),
        (signing("twelve+bytes"), "good, with 1 warning"),
        (signing("abc"), "1 fault; until the next release, serve only warns"),
    ):
        result = checked(folder, configured(case, folder), capfd)
        assert f"{folder}/config.toml: {verdict}\n" in result.output


def test_a_table_says_which_kinds_reach_which_sink_and_why_not(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = (
        configured(rule("event == 'lead.captured' || data.milestone == 'completed'"), folder)
        + '[[sink]]\nname = "tests"\ntype = "http"\nurl = "https://a.invalid"\n'
        + 'events = ["webhook.test", "video.watched"]\nwhen = "data.progress && abs(data.title)"\n'
    )
    text += '[[source]]\nname = "b"\npath = "/b"\nsecrets = ["env:PLAIN2"]\n'.replace(
        "env:PLAIN2", "another-Good.secret~7Vb2Nm5"
    )
    text += '[[sink]]\nname = "all"\ntype = "http"\nurl = "https://b.invalid"\nsources = ["b"]\n'
    output = checked(folder, text, capfd).output
    table = output.partition("Which events reach which sink, by samples of each kind:\n\n")[2]
    rows = [re.split(r"  +", line) for line in table.splitlines()]
    videos = "video.created, video.ready, video.failed, video.deleted"
    assert rows == [
        ["SINK", "EVENTS", "TAKES", "WHY"],
        ["out", videos, "none", "when is false"],
        ["out", "video.watched", rows[2][2], "when is false"],
        ["out", "lead.captured", "all", "when is true"],
        ["out", "webhook.test", "none", "goes only to sinks that name it in events"],
        ["tests", "all but video.watched, webhook.test", "none", "matches nothing in events"],
        ["tests", "video.watched", "none, fails on 24", rows[6][3]],
        ["tests", "webhook.test", "none", "when is false"],
        ["all", "all but webhook.test", "all", "events and sources match"],
        ["all", "webhook.test", "none", "goes only to sinks that name it in events"],
    ]
    assert re.fullmatch(r"[1-9] of 24", rows[2][2])
    assert rows[6][3] == "when failed: JMESPathTypeError: a dead letter"


def test_the_table_is_in_the_json(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    case = rule("data.fields.budget == 'high'", events='["lead.captured"]')
    document = json.loads(checked(folder, configured(case, folder), capfd, "--json").output)
    (route,) = document["routes"]
    assert route["sink"] == "out"
    lead = next(kind for kind in route["kinds"] if kind["event"] == "lead.captured")
    assert (lead["samples"], lead["taken"], lead["failed"]) == (24, 0, 0)
    assert lead["why"] == "when is false: data.fields.budget == 'high'"
    assert [NO_SAMPLE in note for note in document["notes"]] == [True]
    broken = rule('event == "lead.captured"')
    document = json.loads(checked(folder, configured(broken, folder), capfd, "--json").output)
    assert (document["ok"], [fault["path"] for fault in document["faults"]]) == (
        False,
        ["sink[0] (out).when"],
    )
    assert document["routes"]
    assert document["notes"] == []  # the fault is the cause


def test_a_config_that_ran_before_runs_after(folder: Path) -> None:
    for case in (*RULES, *REFERENCES, *SECRETS):
        # A template that cannot be filled in has no meaning to go on with.
        if case.fault and "unknown function" not in case.fault and "{{" not in case.text:
            file = folder / "config.toml"
            file.write_text(configured(case, folder), encoding="utf-8")
            assert config.load(file).mistakes


def test_a_start_and_a_reload_warn_of_what_a_sink_finds_in_its_settings(folder: Path) -> None:
    file = folder / "config.toml"
    file.write_text(configured(ADDRESSES[0], folder), encoding="utf-8")
    loaded = config.load(file)
    with service.logging_to_memory() as lines:
        reload.warn(loaded)
        reload.warn(loaded, known=loaded.warnings)
        logged = lines.getvalue().decode()
    (line,) = map(json.loads, logged.splitlines())
    assert (line["event"], line["key"]) == ("config.warning", "sink[0] (sales).url")
    assert line["reason"].startswith(POWER_AUTOMATE.removeprefix("url: "))
    assert "marked" not in logged


def stored(path: Path | str, more: str = "") -> Case:
    return Case(f'{STDOUT}[store]\npath = "{path}"\n{more}')


def test_a_store_that_is_not_there_yet_will_be_created(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    result = checked(folder, configured(Case(STDOUT), folder), capfd)
    assert f"sqlite at {folder}/data/relay.db, which will be created\n" in result.output
    document = json.loads(checked(folder, configured(Case(STDOUT), folder), capfd, "--json").output)
    assert document["store"]["is_missing"] is True
    (folder / "data").mkdir()
    (folder / "data" / "relay.db").touch()
    result = checked(folder, configured(Case(STDOUT), folder), capfd)
    assert "sqlite at data/relay.db\n" in result.output


def test_less_free_space_than_min_free_is_a_warning(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    case = stored(folder / "new" / "deep" / "relay.db", 'min_free = "1024GiB"\n')
    result = checked(folder, configured(case, folder), capfd)
    assert result.exit_code == 0
    warning = re.search(r"warning    store\.min_free: only (.*) are free", result.output)
    assert warning is not None, result.output


def test_a_network_file_system_is_a_warning(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "network_file_system", lambda _: "nfs4")
    result = checked(folder, configured(stored(folder / "relay.db"), folder), capfd)
    assert "warning    store.path: is on nfs4, where SQLite's locks are unreliable" in result.output


@pytest.mark.parametrize(
    ("path", "cause"),
    [
        ("/proc/x", "/proc shows the kernel's state (proc) and keeps no files"),
        ("/proc/no/such/x.db", "/proc shows the kernel's state (proc) and keeps no files"),
        ("/sys/x.db", "/sys shows the kernel's state (sysfs) and keeps no files"),
        ("a" * 253, "File name too long"),
        ("a" * 250 + ".db", "File name too long"),
    ],
)
def test_a_path_where_no_file_can_be_is_a_fault(
    folder: Path, capfd: pytest.CaptureFixture[str], path: str, cause: str
) -> None:
    result = checked(folder, configured(stored(path), folder), capfd)
    assert result.exit_code == 1
    assert f"store.path: serve cannot open it: {cause}" in result.output


def test_a_link_to_itself_is_a_fault(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "loop.db").symlink_to(folder / "loop.db")
    result = checked(folder, configured(stored(folder / "loop.db"), folder), capfd)
    assert result.exit_code == 1
    assert "store.path: serve cannot open it: Too many levels of symbolic links" in result.output


@contextlib.contextmanager
def read_only(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make every file system read-only for `os.access` and `os.statvfs`, as the kernel does."""
    real = os.statvfs

    def statvfs(path: str | Path) -> os.statvfs_result:
        values = list(real(path))
        values[8] |= os.ST_RDONLY
        return os.statvfs_result(values)

    with monkeypatch.context() as patched:
        patched.setattr(os, "statvfs", statvfs)
        patched.setattr(os, "access", lambda _, mode, **__: not mode & os.W_OK)
        yield


def test_a_read_only_file_system_is_named_as_such(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "relay.db").touch()
    with read_only(monkeypatch):
        for path in (folder / "relay.db", folder / "other.db", folder / "new" / "relay.db"):
            cause = preflight.check(path)
            assert cause is not None
            assert "is on a file system that is mounted read-only: mount it writable" in cause
            assert pwd.getpwuid(os.geteuid()).pw_name not in cause.replace(str(folder), "")


@pytest.mark.servers
def test_a_start_warns_of_a_mistake_and_a_path_that_keeps_no_files_ends_it_with_78(
    folder: Path,
) -> None:
    case = Case(rule('event == "lead.captured"').text + '[store]\npath = "/proc/x"\n')
    file = folder / "config.toml"
    file.write_text(configured(case, folder), encoding="utf-8")
    command = [sys.executable, "-m", "relay", "serve", "--config", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == os.EX_CONFIG
    first, last = done.stderr.splitlines()
    assert json.loads(first)["key"] == "sink[0] (out).when"
    assert json.loads(first)["advice"].endswith("relay check-config fails on it already")
    assert last == (
        "relay: the store /proc/x cannot be opened: /proc shows the kernel's state (proc) and "
        "keeps no files: name a path on a disk"
    )
