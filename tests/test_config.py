"""A config is taken whole or refused with every fault; `configs/` holds one file per mistake."""

import re
import sys
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from relay import sinks
from relay.config import AdminSettings, Config, ServerSettings, default_path, load
from relay.errors import ConfigError
from relay.inbound import SourceSettings
from relay.log import LogSettings
from relay.settings import Secret
from relay.store import StoreSettings

BAD = sorted((Path(__file__).parent / "configs").glob("*.toml"))
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
    assert config.store == StoreSettings()
    assert config.admin == AdminSettings()
    assert config.log == LogSettings()
    assert config.sources == (
        SourceSettings(name="main", path="/webhooks", secrets=(Secret(SECRET),)),
    )
    assert warnings(config) == ["sink: there is none: events are kept, but go nowhere"]


def test_each_sink_has_its_route_in_the_same_order(write: Write) -> None:
    text = "".join(f'\n[[sink]]\nname = "{name}"\ntype = "stdout"\n' for name in ("a", "b"))
    config = load(write(MINIMAL + text), ENVIRON)
    assert [sink.name for sink in config.sinks] == ["a", "b"]
    assert [route.sink for route in config.routes] == ["a", "b"]


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"\xff\xfe", "cannot be read: not UTF-8 text (line 1)"),
        (b"x" * (1 << 20) + b"x", "cannot be read: larger than 1 MiB"),
        (b"a = " + b"[" * 10_000, "is not TOML that can be read: nested too deeply"),
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
            "server.admin_listen: is open to the network without a token: set [admin] token",
        ),
        (
            '[[source]]\nname = "b"\npath = "/b"\nsecrets = ["env:SECRET"]\n',
            (
                "source[1] (b).secrets[0]: is the same as source[0] (main).secrets[0]: "
                "what one source signs, the other takes"
            ),
        ),
        (
            '[[source]]\nname = "b"\npath = "/b"\nsecrets = ["twelve-bytes"]\n',
            "source[1] (b).secrets[0]: is short: a good secret has 16 bytes or more",
        ),
        (
            '[[source]]\nname = "b"\npath = "/b"\nsecrets = [" sixteen bytes and blanks"]\n',
            "source[1] (b).secrets[0]: begins or ends with white space, which counts",
        ),
        (
            '[[source]]\nname = "b"\npath = "/b"\nsecrets = ["env:OTHER"]\ntolerance = "2h"\n',
            "source[1] (b).tolerance: is long: a captured request stays good as long",
        ),
        (
            '[[sink]]\nname = "a"\ntype = "stdout"\nevents = ["lead.capture"]\n',
            (
                "sink[0] (a).events[0]: takes nothing that the video service sends; "
                "did you mean lead.captured?"
            ),
        ),
        (
            '[[sink]]\nname = "a"\ntype = "stdout"\nevents = ["webhook.*"]\n',
            (
                "sink[0] (a).events[0]: takes nothing that the video service sends; "
                "did you mean webhook.test?"
            ),
        ),
        (
            (
                '[[sink]]\nname = "a"\ntype = "stdout"\nevents = ["lead.captured"]\n'
                'when = "length(data.nothing) > `1`"\n'
            ),
            "sink[0] (a).when: fails on samples of lead.captured, which would become dead letters",
        ),
        (
            '[store.retention]\n"lead.capture" = "14d"\n',
            (
                'store.retention."lead.capture": fits nothing that the video service sends; '
                "did you mean lead.captured?"
            ),
        ),
    ],
)
def test_what_is_allowed_but_odd_is_a_warning(write: Write, text: str, warning: str) -> None:
    assert warning in warnings(load(write(f"{MINIMAL}\n{text}"), ENVIRON))


def test_ports_chosen_by_the_system_do_not_collide(write: Write) -> None:
    server = '[server]\nlisten = "127.0.0.1:0"\nadmin_listen = "127.0.0.1:0"\n'
    assert load(write(server + MINIMAL), ENVIRON).server.listen.port == 0


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
        f"from relay.errors import InvalidTemplate\nfrom relay.sink import SinkSettings\n{head}\n"
        "class Settings(SinkSettings, frozen=True, kw_only=True):\n    topic: str = 'x'\n"
        f"def build(settings, clock):\n    {body}\n"
    )
    monkeypatch.setattr(sinks, "__path__", [*sinks.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "relay.sinks.frail", raising=False)
    (found,) = faults(write(f'{MINIMAL}[[sink]]\nname = "a"\ntype = "frail"\n'))
    assert found.startswith("sink[0] (a)")
    assert fnmatchcase(found, fault) or fnmatchcase(found.removeprefix("sink[0] (a)."), fault)


def test_a_value_that_cannot_be_read_makes_no_other_look_wrong(write: Write) -> None:
    sink = '[[sink]]\nname = "a"\ntype = "slack"\nurl = "https://hooks.slack.example/x"\n'
    text = 'text = "{{ data.milestone.x.y }}"\n'
    (fault,) = faults(write(f'{MINIMAL}{sink}{text}events = ["lead.captured", 5]\n'))
    assert ".events[1]: " in fault
    (fault,) = faults(write(f'{MINIMAL}{sink}events = ["lead.captured"]\nwhen = 5\n{text}'))
    assert ".when: " in fault
