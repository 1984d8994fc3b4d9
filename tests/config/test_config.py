"""A config is loaded whole or refused with all faults; `documents/` has one file per mistake."""

import re
import sys
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from relay import sinks
from relay.config import (
    AdminSettings,
    Config,
    ServerSettings,
    default_path,
    load,
    load_admin_address,
    load_admin_token,
    load_store,
)
from relay.config.secret_checks import expired
from relay.core.authentication import SigningSecret, SourceSettings
from relay.core.config_values import Secret
from relay.core.errors import ConfigError
from relay.store.sqlite.settings import SqliteSettings
from relay.telemetry.log import LogSettings

BAD = sorted((Path(__file__).parent / "documents").glob("*.toml"))
SECRET = "a-good-secret-of-32-characters-x"
ENVIRON = {
    "SECRET": SECRET,
    "OTHER": "another-good-secret-of-its-own-y",
    "EMPTY": "",
    "BLANK": " \n",
}
MINIMAL = '[[source]]\nname = "main"\npath = "/webhooks"\nsecrets = ["env:SECRET"]\n'

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str) -> Path:
        path = tmp_path / "config.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def faults(path: Path) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(path, ENVIRON)
    assert caught.value.file == str(path)
    return [str(fault) for fault in caught.value.faults]


def warnings(config: Config) -> list[str]:
    return [str(warning) for warning in config.warnings]


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_a_bad_config_is_refused_with_exactly_these_faults(path: Path) -> None:
    expected = re.findall(r"^# fault: (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    actual = faults(path)
    assert len(actual) == len(expected) > 0, actual
    for fault, pattern in zip(actual, expected, strict=True):
        assert fault == pattern or (
            pattern.endswith("*") and fnmatchcase(fault, pattern.replace("[", "[[]"))
        )


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_no_fault_shows_a_secret(path: Path) -> None:
    text = "\n".join(faults(path))
    assert "marked" not in text
    assert SECRET not in text


def test_all_faults_of_all_bad_tables_come_at_once(write: Write) -> None:
    text = (
        '[server]\nmax_body = "1B"\n[[source]]\nname = "main"\npath = "x"\nsecrets = ["short"]\n'
        '[[sink]]\nname = "a"\ntype = "stdout"\nconcurrency = 0\nwhen = "((("\nsources = ["b"]\n'
    )
    keys = [fault.partition(": ")[0] for fault in faults(write(text))]
    assert keys == [
        "server.max_body",
        "source[0] (main).path",
        "source[0] (main).secrets[0]",
        "sink[0] (a).concurrency",
        "sink[0] (a).when",
        "sink[0] (a).sources[0]",
    ]


def test_a_minimal_config_gets_the_defaults(write: Write) -> None:
    config = load(write(MINIMAL), ENVIRON)
    assert config.server == ServerSettings()
    assert config.store == SqliteSettings()
    assert config.admin == AdminSettings()
    assert config.log == LogSettings()
    assert config.sources == (
        SourceSettings(
            name="main", path="/webhooks", secrets=(SigningSecret(secret=Secret(SECRET)),)
        ),
    )
    assert warnings(config) == ["sink: none is configured: events are stored, but not delivered"]


def test_each_sink_has_its_route_in_the_same_order(write: Write) -> None:
    text = "".join(f'\n[[sink]]\nname = "{name}"\ntype = "stdout"\n' for name in ("a", "b"))
    config = load(write(MINIMAL + text), ENVIRON)
    assert [sink.name for sink in config.sinks] == ["a", "b"]
    assert [route.sink for route in config.routes] == ["a", "b"]


ABSENT = "No such file or directory; create it, or name another with --config PATH or RELAY_CONFIG"


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (None, f"cannot be read: {ABSENT}"),
        (b"\xff\xfe", "cannot be read: not UTF-8 text (line 1)"),
        (b"x" * (1 << 20) + b"x", "cannot be read: larger than 1 MiB"),
        (b"a = " + b"[" * 10_000, "is nested too deeply"),
    ],
)
def test_an_unreadable_file_is_a_fault(tmp_path: Path, content: bytes | None, fault: str) -> None:
    path = tmp_path / "config.toml"
    if content is not None:
        path.write_bytes(content)
    assert faults(path) == [fault]


def test_a_folder_is_a_fault(tmp_path: Path) -> None:
    assert faults(tmp_path) == ["cannot be read: Is a directory"]


def test_a_rule_nested_too_deeply_is_a_fault(write: Write) -> None:
    when = "(" * 5000 + "a" + ")" * 5000
    text = f'{MINIMAL}[[sink]]\nname = "a"\ntype = "stdout"\nwhen = "{when}"\n'
    assert faults(write(text)) == [
        "sink[0] (a).when: is not a JMESPath expression: nested too deeply"
    ]


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        (
            '[server]\nadmin_listen = "0.0.0.0:9464"\n',
            "server.admin_listen: is open to the network, but the API is off: set [admin] token",
        ),
        (
            '[[source]]\nname = "b"\npath = "/b"\nsecrets = ["env:SECRET"]\n',
            (
                "source[1] (b).secrets[0]: is the same as source[0] (main).secrets[0]: "
                "each source accepts the other's requests"
            ),
        ),
        (
            '[[source]]\nname = "b"\npath = "/b"\nsecrets = ["twelve-bytes"]\n',
            "source[1] (b).secrets[0]: is short: a good secret has 16 bytes or more",
        ),
        (
            '[[source]]\nname = "b"\npath = "/b"\nsecrets = [" sixteen bytes and blanks"]\n',
            "source[1] (b).secrets[0]: starts or ends with white space, which counts",
        ),
        (
            '[source.api]\nbase_url = "http://api.example.com"\nkey = "env:OTHER"\n',
            "source[0] (main).api.base_url: is not https: the key can be read on its way",
        ),
        (
            '[[source]]\nname = "b"\npath = "/b"\nsecrets = ["env:OTHER"]\ntolerance = "2h"\n',
            "source[1] (b).tolerance: is long: a captured request can be replayed for this long",
        ),
        (
            '[[sink]]\nname = "a"\ntype = "stdout"\nevents = ["lead.capture"]\n',
            (
                "sink[0] (a).events[0]: matches no kind of the video service; "
                "did you mean lead.captured?"
            ),
        ),
        (
            '[[sink]]\nname = "a"\ntype = "stdout"\nevents = ["webhook.*"]\n',
            (
                "sink[0] (a).events[0]: matches no kind of the video service; "
                "did you mean webhook.test?"
            ),
        ),
        (
            (
                '[[sink]]\nname = "a"\ntype = "stdout"\nevents = ["lead.captured"]\n'
                'when = "length(data.nothing) > `1`"\n'
            ),
            "sink[0] (a).when: fails on samples of lead.captured: such events become dead letters",
        ),
        (
            '[store.retention]\n"lead.capture" = "14d"\n',
            (
                'store.retention."lead.capture": matches no kind of the video service; '
                "did you mean lead.captured?"
            ),
        ),
        (
            (
                '[source.api]\nbase_url = "https://api.example.com"\nkey = "env:OTHER"\n'
                '[[sink]]\nname = "a"\ntype = "stdout"\nevents = ["video.*"]\nenrich = true\n'
            ),
            "sink[0] (a).enrich: does nothing: `events` has no lead.captured",
        ),
        (
            (
                'reconcile = "auto"\n'
                '[source.api]\nbase_url = "https://api.example.com"\nkey = "env:OTHER"\n'
                '[[sink]]\nname = "a"\ntype = "stdout"\n'
            ),
            "source[0] (main).reconcile: reaches no sink: none has reconstructed = true",
        ),
    ],
)
def test_a_valid_but_unusual_value_is_a_warning(write: Write, text: str, warning: str) -> None:
    assert warning in warnings(load(write(f"{MINIMAL}\n{text}"), ENVIRON))


def test_ports_chosen_by_the_system_do_not_collide(write: Write) -> None:
    server = '[server]\nlisten = "127.0.0.1:0"\nadmin_listen = "127.0.0.1:0"\n'
    assert load(write(server + MINIMAL), ENVIRON).server.listen.port == 0


def test_one_port_of_two_addresses_does_not_collide(write: Write) -> None:
    server = '[server]\nlisten = "127.0.0.1:9464"\nadmin_listen = "[::1]:9464"\n'
    assert load(write(server + MINIMAL), ENVIRON).server.admin_listen.port == 9464


def test_a_token_silences_the_warning_of_an_open_listener(write: Write) -> None:
    text = '[server]\nadmin_listen = "[::]:9464"\n[admin]\ntoken = "env:OTHER"\n'
    assert len(warnings(load(write(text + MINIMAL), ENVIRON))) == 1


def test_the_path_comes_from_the_environment_or_is_config_toml() -> None:
    assert default_path({"RELAY_CONFIG": "/etc/relay.toml"}) == Path("/etc/relay.toml")
    assert default_path({"RELAY_CONFIG": ""}) == Path("config.toml")
    assert default_path({}) == Path("config.toml")


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("import no_such_client\n", "type: sink type `frail` needs its client: pip install *"),
        ("raise InvalidTemplate('line 1: no')", "*(a): line 1: no"),
        ("raise ValueError('topic: no wildcards')", "topic: no wildcards"),
        ("raise ValueError('broker: not ours')", "*(a): broker: not ours"),
    ],
)
def test_a_sink_that_cannot_be_built_is_a_fault(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, fault: str
) -> None:
    head, body = (source, "pass") if source.startswith("import") else ("", source)
    (tmp_path / "frail.py").write_text(
        "from relay.core.errors import InvalidTemplate\n"
        f"from relay.core.sink import SinkSettings\n{head}\n"
        "class Settings(SinkSettings, frozen=True, kw_only=True):\n    topic: str = 'x'\n"
        f"def build(settings, clock):\n    {body}\n"
    )
    monkeypatch.setattr(sinks, "__path__", [*sinks.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "relay.sinks.frail", raising=False)
    (report,) = faults(write(f'{MINIMAL}[[sink]]\nname = "a"\ntype = "frail"\n'))
    assert report.startswith("sink[0] (a)")
    assert fnmatchcase(report, fault) or fnmatchcase(report.removeprefix("sink[0] (a)."), fault)


def test_an_unreadable_value_causes_no_other_fault(write: Write) -> None:
    sink = '[[sink]]\nname = "a"\ntype = "slack"\nurl = "https://hooks.slack.example/x"\n'
    text = 'text = "{{ data.milestone.x.y }}"\n'
    (fault,) = faults(write(f'{MINIMAL}{sink}{text}events = ["lead.captured", 5]\n'))
    assert ".events[1]: " in fault
    (fault,) = faults(write(f'{MINIMAL}{sink}events = ["lead.captured"]\nwhen = 5\n{text}'))
    assert ".when: " in fault


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (
            '[store]\npayload_retention = "90d"\ndedupe_retention = "soon"\n' + MINIMAL,
            (
                'store.dedupe_retention: expected a duration such as "250ms", "5s", "10m", "2h" or '
                '"30d", found "soon"'
            ),
        ),
        (
            f'{MINIMAL}[[sink]]\nname = "a"\ntype = "stdout"\nsources = [5]\nwhen = "event"\n',
            "sink[0] (a).sources[0]: expected text in quotes, found 5",
        ),
        ("sink = [5]\n" + MINIMAL, "sink[0]: expected a table, found 5"),
        ("store = 5\n" + MINIMAL, "store: expected a table, found 5"),
    ],
)
def test_a_value_of_the_wrong_type_is_its_only_fault(write: Write, text: str, fault: str) -> None:
    assert faults(write(text)) == [fault]


SECRETS = '[[source]]\nname = "b"\npath = "/b"\nsecrets = [{}]\n'
LABELLED = '{{ secret = "env:OTHER", label = "{}" }}'


def test_a_secret_may_have_a_label_and_an_expiry(write: Write) -> None:
    ends = ("2026-12-01", "2026-12-01T02:00:00+02:00", '"2026-12-01"', '"2026-12-01T00:00:00Z"')
    for end in ends:
        table = f'{{ secret = "env:OTHER", label = "old", until = {end} }}'
        config = load(write(MINIMAL + SECRETS.format(f'"another-good-secret", {table}')), ENVIRON)
        first, second = config.sources[1].keys
        assert (first.label, first.until_ms) == ("1", float("inf"))
        assert (second.value, second.label) == (ENVIRON["OTHER"].encode(), "old")
        assert second.until_ms == 1_796_083_200_000
        assert ENVIRON["OTHER"] not in repr(config)


@pytest.mark.parametrize(
    ("secrets", "expected"),
    [
        ('{ label = "old" }', "secrets[0].secret: is missing: expected *"),
        ('{ secret = "env:OTHER", lable = "a" }', "secrets[0].lable: is not a known key; *label?"),
        ('{ secret = "short" }', "secrets[0].secret: is too short for a secret: *"),
        (
            LABELLED.format("With Blanks"),
            "secrets[0].label: expected 1 to 63 of a-z, 0-9, - and _, *",
        ),
        (
            '{ secret = "env:OTHER", until = "soon" }',
            "secrets[0].until: expected a date or a time such as 2026-12-01 *",
        ),
        (
            '{ secret = "env:OTHER", until = 09:30:00 }',
            "secrets[0].until: expected a date or a time such as 2026-12-01 *",
        ),
        (
            LABELLED.format("2") + ', "another-good-secret"',
            "secrets[1].label: is already used by source[1] (b).secrets[0]: *",
        ),
        (
            '"another-good-secret", { secret = "another-good-secret", label = "x" }',
            "secrets[1]: is the same as source[1] (b).secrets[0]: *",
        ),
    ],
)
def test_a_faulty_secret_is_named_by_its_key(write: Write, secrets: str, expected: str) -> None:
    (report,) = faults(write(MINIMAL + SECRETS.format(secrets)))
    assert fnmatchcase(report.removeprefix("source[1] (b)."), expected.replace("[", "[[]")), report


@pytest.mark.parametrize("part", [slice(None), slice(0, 8), slice(-8, None)])
def test_a_label_that_repeats_a_secret_is_a_fault_that_shows_neither(
    write: Write, part: slice
) -> None:
    label = ENVIRON["OTHER"].lower()[part]
    for text in (
        LABELLED.format(label),
        LABELLED.format(label).replace("env:OTHER", "a-third-good-secret"),
    ):
        used = '[[source]]\nname = "c"\npath = "/c"\nsecrets = ["env:OTHER"]\n'
        (report,) = faults(write(MINIMAL + SECRETS.format(text) + used))
        assert (
            report == "source[1] (b).secrets[0].label: repeats a part of a secret: expected a name"
        )


def test_an_expired_secret_is_a_warning_from_its_end_on(write: Write) -> None:
    ends = '{ secret = "env:OTHER", label = "old", until = 2026-12-01 }'
    alone = load(write(MINIMAL + SECRETS.format(ends)), ENVIRON).sources
    beside = load(
        write(MINIMAL + SECRETS.format(ends + ', "another-good-secret"')), ENVIRON
    ).sources
    end_ms = 1_796_083_200_000
    assert expired(alone, now_ms=end_ms - 1) == ()
    (warning,) = expired(beside, now_ms=end_ms)
    assert str(warning) == ("source.b.secrets: old has reached its `until` and no longer verifies")
    (warning,) = expired(alone, now_ms=end_ms)
    assert str(warning).endswith(", and the source has no other: every request is refused")


def test_commands_read_only_the_tables_that_they_need(write: Write) -> None:
    path = write(
        '[store]\npath = "x.db"\n[server]\nadmin_listen = "127.0.0.1:1"\n'
        '[[source]]\nname = "main"\npath = "/webhooks"\nsecrets = ["env:NOT_SET"]\n'
    )
    assert load_store(path, ENVIRON) == SqliteSettings(path="x.db")
    assert load_admin_address(path, ENVIRON) == "127.0.0.1:1"
    assert load_admin_token(path, ENVIRON) is None


def test_the_admin_address_and_token_are_read_despite_faults_of_other_keys(
    write: Write,
) -> None:
    path = write(
        '[server]\nadmin_listen = "127.0.0.1:1"\nlisten = 1\nodd = 2\n'
        '[admin]\ntoken = "a-token-of-sixteen"\n[store]\nodd = 1\n[[sink]]\ntype = 1\n'
    )
    assert load_admin_address(path, ENVIRON) == "127.0.0.1:1"
    assert load_admin_token(path, ENVIRON) == Secret("a-token-of-sixteen")


@pytest.mark.parametrize(
    "line",
    ["server = 1", "server.admin_listen = 9464", 'server.admin_lsten = "127.0.0.1:1"'],
)
def test_a_faulty_address_of_the_admin_listener_is_not_replaced_by_the_default(
    write: Write, line: str
) -> None:
    with pytest.raises(ConfigError, match=r"admin_listen|a table"):
        load_admin_address(write(line), ENVIRON)


def test_a_command_reports_only_the_faults_of_the_table_it_reads(write: Write) -> None:
    path = write('[store]\npath = 1\nodd = 2\n[log]\nlevel = "loud"\n')
    with pytest.raises(ConfigError) as refusal:
        load_store(path, ENVIRON)
    assert [fault.path for fault in refusal.value.faults] == ["store.path", "store.odd"]
