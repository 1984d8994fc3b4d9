"""`relay check-config` and `relay verify` report faults, and never show a secret."""

import contextlib
import json
import os
import pwd
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner, Result

from relay.cli.check import DatabaseCheck, check_config, verify
from relay.core import signature
from relay.store.sqlite import preflight

SECRET = "marked-secret-of-the-source"
NOW = 1_772_443_800
BODY = '{\n  "id": "evt_1",\n  "event": "lead.captured",\n  "data": {"name": "Zoë"}\n}\n'.encode()
GOOD = f'[[source]]\nname = "main"\npath = "/webhooks"\nsecrets = ["{SECRET}"]\n'
STDOUT = '[[sink]]\nname = "console"\ntype = "stdout"\n'


class Ran(NamedTuple):
    exit_code: int
    output: str


Check = Callable[..., Ran]


@pytest.fixture
def check(capfd: pytest.CaptureFixture[str]) -> Check:
    """Run the command on a real stdout, because the stdout sink needs its descriptor."""

    def check(*arguments: str | Path) -> Ran:
        code = check_config.main([str(each) for each in arguments], standalone_mode=False)
        return Ran(code, capfd.readouterr().out)

    return check


def write_config(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_valid_config_is_summarized(tmp_path: Path, check: Check) -> None:
    result = check("--config", write_config(tmp_path, GOOD + STDOUT))
    assert result.exit_code == 0
    for part in (
        "good",
        "127.0.0.1:8080",
        "127.0.0.1:9464",
        "main at /webhooks",
        "console (stdout)",
    ):
        assert part in result.output
    assert SECRET not in result.output


def test_warnings_are_shown_and_do_not_fail_the_check(tmp_path: Path, check: Check) -> None:
    result = check("--config", write_config(tmp_path, GOOD))
    assert result.exit_code == 0
    assert "warning    sink: none is configured" in result.output


def test_warnings_of_the_database_count_too(
    tmp_path: Path, check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def reached(_: object) -> DatabaseCheck:
        return DatabaseCheck(ok=True, text="PostgreSQL 15", warnings=("fsync is off", "encoding"))

    config = write_config(tmp_path, GOOD)
    assert ": good, with 1 warning\n" in check("--config", config).output
    monkeypatch.setattr("relay.cli.check.reach_store", reached)
    assert ": good, with 3 warnings\n" in check("--config", config, "--connect").output


def test_a_target_that_outsiders_choose_is_a_warning(tmp_path: Path, check: Check) -> None:
    sink = (
        '[[sink]]\nname = "bus"\ntype = "nats"\nservers = "nats://127.0.0.1"\n'
        'subject = "{{ data.name }}"\nevents = ["lead.captured"]\n'
    )
    result = check("--config", write_config(tmp_path, GOOD + sink))
    assert result.exit_code == 0
    assert "warning    sink[0] (bus).subject: begins with a value of `data`" in result.output


def test_every_fault_is_a_line_with_file_key_and_expected_value(
    tmp_path: Path, check: Check
) -> None:
    path = write_config(tmp_path, GOOD.replace("/webhooks", "webhooks") + '[log]\nlevel = "loud"\n')
    result = check("--config", path)
    assert result.exit_code == 1
    assert result.output.splitlines() == [
        f'{path}: log.level: expected "debug" or "info" or "warning" or "error", found "loud"',
        f'{path}: source[0] (main).path: expected a path that begins with "/"',
    ]


def test_faults_are_available_as_json(tmp_path: Path, check: Check) -> None:
    path = tmp_path / "none.toml"
    result = check("--config", path, "--json")
    assert result.exit_code == 1
    assert json.loads(result.output) == {
        "file": str(path),
        "ok": False,
        "faults": [
            {
                "path": "",
                "message": "cannot be read: No such file or directory; create it, or name another "
                "with --config PATH or RELAY_CONFIG",
            }
        ],
    }


def test_an_unreadable_config_is_shown_with_its_whole_path_and_the_user(
    monkeypatch: pytest.MonkeyPatch, check: Check
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        monkeypatch.chdir(folder)
        assert check("--config", "none.toml").output.startswith(f"{folder}/none.toml: ")
        write_config(folder, GOOD).chmod(0o200)
        folder.chmod(0o755)
        with somebody():
            user = pwd.getpwuid(os.geteuid()).pw_name
            output = check("--config", "config.toml").output
        monkeypatch.undo()
    cause = f"cannot be read: Permission denied; let the user {user} read it"
    assert output == f"{folder}/config.toml: {cause}\n"


def test_the_summary_is_available_as_json(tmp_path: Path, check: Check) -> None:
    summary = json.loads(check("--config", write_config(tmp_path, GOOD + STDOUT), "--json").output)
    assert (summary["ok"], summary["faults"], summary["warnings"]) == (True, [], [])
    assert summary["sources"] == [{"name": "main", "path": "/webhooks"}]
    assert summary["sinks"] == [{"name": "console", "type": "stdout"}]


def test_the_path_comes_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check: Check
) -> None:
    monkeypatch.setenv("RELAY_CONFIG", str(write_config(tmp_path, GOOD + STDOUT)))
    assert check().exit_code == 0


def http_sink(destination: socket.socket, path: str = "") -> str:
    url = f"http://127.0.0.1:{destination.getsockname()[1]}{path}"
    return f'[[sink]]\nname = "crm"\ntype = "http"\nurl = "{url}"\n'


@contextlib.contextmanager
def somebody() -> Iterator[None]:
    """Become a user who is subject to file modes, unlike root."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(pwd.getpwnam("nobody").pw_uid)
    try:
        yield
    finally:
        os.seteuid(before)


def stored_at(path: Path | str) -> str:
    return f'{GOOD}[store]\npath = "{path}"\n'


def test_a_store_that_serve_cannot_open_is_a_fault_and_no_file_is_created(
    tmp_path: Path, check: Check
) -> None:
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "notes").write_text("no database")
    (tmp_path / "linked").touch()
    os.link(tmp_path / "linked", tmp_path / "other")
    for path, message in {
        tmp_path: "is a folder: expected the path of a file",
        tmp_path / "pipe": "is not a regular file: expected the path of a file",
        tmp_path / "other": f"serve cannot open it: the file {tmp_path}/other has 2 hard links",
        tmp_path / "notes": f"serve cannot open it: {tmp_path}/notes is not an SQLite database",
        tmp_path / "file" / "relay.db": f"serve cannot open it: {tmp_path}/file is not a folder",
    }.items():
        result = check("--config", write_config(tmp_path, stored_at(path)))
        assert result.exit_code == 1
        assert result.output.count("store.path: ") == 1
        assert f"store.path: {message}" in result.output
    names = {"file", "pipe", "notes", "linked", "other", "config.toml"}
    result = check(
        "--config", write_config(tmp_path, stored_at(tmp_path / "new" / "deep" / "a.db"))
    )
    assert result.exit_code == 0
    assert {each.name for each in tmp_path.iterdir()} == names


def test_a_store_of_another_user_is_a_fault_with_the_owners_name() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, store = Path(name), Path(name) / "relay.db"
        owner = pwd.getpwuid(os.getuid()).pw_name
        folder.chmod(0o555)
        with somebody():
            cause = preflight.check(store)
            assert cause is not None
            assert cause.endswith(f"the folder {name}, which belongs to {owner} (mode 0555)")
            cause = preflight.check(folder / "data" / "relay.db")
            assert cause is not None
            assert cause.startswith(f"the folder {name}/data is missing, and the user ")
        folder.chmod(0o777)
        with somebody():
            assert preflight.check(store) is None
        store.with_name("relay.db-wal").touch(0o444)
        with somebody():
            cause = preflight.check(store)
        assert cause is not None
        assert cause.endswith(f"{name}/relay.db-wal, which belongs to {owner} (mode 0444)")


def test_a_fault_of_the_store_is_reported_with_the_others(tmp_path: Path, check: Check) -> None:
    result = check("--config", write_config(tmp_path, stored_at(tmp_path) + "odd = 1\n"), "--json")
    paths = [fault["path"] for fault in json.loads(result.output)["faults"]]
    assert paths == ["store.odd", "store.path"]
    result = check(
        "--config",
        write_config(tmp_path, stored_at(tmp_path) + '[log]\nlevel = "loud"\n'),
        "--json",
    )
    paths = [fault["path"] for fault in json.loads(result.output)["faults"]]
    assert paths == ["log.level", "store.path"]


def test_connect_reports_on_each_sink(tmp_path: Path, check: Check) -> None:
    with socket.socket() as bound:  # bound, but not listening
        bound.bind(("127.0.0.1", 0))
        http = http_sink(bound, path="/marked")
        result = check("--config", write_config(tmp_path, GOOD + STDOUT + http), "--connect")
    assert result.exit_code == 1
    assert "config.toml: good, but 1 of 2 connections failed\n" in result.output
    assert "sink console (stdout): reached" in result.output
    assert "sink crm (http): connection refused; an event would be retried" in result.output
    assert "marked" not in result.output


def test_connect_ends_at_the_sinks_timeout(tmp_path: Path, check: Check) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        http = http_sink(silent) + 'timeout = "50ms"\n'
        result = check("--config", write_config(tmp_path, GOOD + http), "--connect", "--json")
    assert result.exit_code == 1
    (contact,) = json.loads(result.output)["connections"]
    assert (contact["sink"], contact["type"], contact["ok"]) == ("crm", "http", False)
    assert "in time" in contact["text"] or "within 0.05 s" in contact["text"]


def verify_text(
    header: str, body: bytes = BODY, *options: str, secret: str = SECRET, at: int = NOW
) -> Result:
    arguments = ["--secret", secret, "--header", header, "--body", "-", "--at", str(at), *options]
    result = CliRunner().invoke(verify, arguments, input=body)
    assert SECRET not in result.output
    assert signature.sign(SECRET.encode(), b"%d" % NOW, BODY).decode() not in result.output
    return result


HEADER = signature.header(SECRET.encode(), now_s=NOW, body=BODY)
DIGEST = HEADER.partition("v1=")[2]


@pytest.mark.parametrize("prefix", ["", "Service-Signature: ", "service-signature:"])
def test_a_valid_request_is_good(prefix: str) -> None:
    result = verify_text(prefix + HEADER, at=NOW + 3)
    assert result.exit_code == 0
    assert result.output == "good: the signature matches; signed 3 s before the time of the check\n"


@pytest.mark.parametrize(
    ("header", "text"),
    [
        ("", "it is empty"),
        ("nonsense", 'part 1 of 1 has no "="'),
        (f"t={NOW},v1", 'part 2 of 2 has no "="'),
        (f"v1={DIGEST}", "it has 0 parts t=, and one was expected"),
        (f"t=1,t=2,v1={DIGEST}", "it has 2 parts t=, and one was expected"),
        (f"t={NOW}000,v1={DIGEST}", "t is in milliseconds, and seconds were expected"),
        (f"t=yesterday,v1={DIGEST}", "t is not a unix time in whole seconds"),
        (f"t={NOW}", "it has no part v1="),
        (f"t={NOW},v0={DIGEST}", "it has no part v1="),
        (f"t={NOW},v1={DIGEST.upper()}", "v1 has capital letters, and lowercase hex was expected"),
        (f"t={NOW},v1=abc", "v1 has 3 characters, and 64 of lowercase hex were expected"),
        (f"t={NOW}" + f",v1={DIGEST}" * 9, "it has 9 parts v1=, and 8 are the most"),
        (f"t={NOW}" + ",a=b" * 32, "it has 33 parts, and 32 are the most"),
        ("t=" + "1" * 4096, "it is longer than 4096 bytes"),
    ],
)
def test_the_malformed_part_of_a_header_is_named(header: str, text: str) -> None:
    result = verify_text(header)
    assert result.exit_code == 1
    assert result.output == f"malformed: the header is malformed: {text}\n"


@pytest.mark.parametrize(
    ("at", "text"),
    [
        (NOW + 301, "stale: the digest matches, but the time does not: signed 301 s before"),
        (NOW - 400, "future: the digest matches, but the time does not: signed 400 s after"),
    ],
)
def test_a_stale_request_is_reported_with_its_clock_difference(at: int, text: str) -> None:
    result = verify_text(HEADER, at=at)
    assert result.exit_code == 1
    assert result.output.startswith(text)
    assert verify_text(HEADER, BODY, "--tolerance", "10m", at=at).exit_code == 0


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        (BODY + b"\n", "the trailing newline is dropped"),
        (BODY + b"\r\n", "the trailing newline (CRLF) is dropped"),
        (BODY.removesuffix(b"\n"), "a trailing newline is added"),
        (BODY.replace(b"\n", b"\r\n"), "CRLF line ends are turned into LF"),
        (b"  " + BODY, None),
        (b"\xef\xbb\xbf" + BODY, "the byte order mark is dropped"),
        (BODY.replace(b"evt_1", b"evt_2"), None),
        (b"", None),
        (b"[" * 600 + b"]" * 600, None),
    ],
)
def test_the_change_of_a_changed_body_is_named(body: bytes, cause: str | None) -> None:
    result = verify_text(HEADER, body)
    assert result.exit_code == 1
    assert result.output.startswith("mismatch: the v1 digest does not match this secret")
    assert f"{len(body)} bytes" in result.output
    if cause is None:
        assert "once" not in result.output
    else:
        assert f"once {cause}: the body was changed on its way" in result.output


@pytest.mark.parametrize(
    ("sent", "form"),
    [
        (b'{"id":"1","name":"Zo\xc3\xab"}', "without blanks"),
        (b'{"id":"1","name":"Zo\\u00eb"}', "without blanks, in ASCII"),
        (b'{"id": "1", "name": "Zo\xc3\xab"}', "with blanks after commas and colons"),
        (b'{"id": "1", "name": "Zo\\u00eb"}', "with blanks after commas and colons, in ASCII"),
    ],
)
def test_a_re_encoded_body_is_recognised(sent: bytes, form: str) -> None:
    received = b'{\n    "id": "1",\n    "name": "Zo\xc3\xab"\n}'
    result = verify_text(signature.header(SECRET.encode(), now_s=NOW, body=sent), received)
    assert f"once the JSON is written {form}: the body was changed" in result.output


def test_white_space_around_the_secret_is_recognised() -> None:
    result = verify_text(HEADER, secret=f"{SECRET} ")
    assert "the signature matches once white space around the secret is dropped" in result.output


def test_several_digests_are_counted() -> None:
    header = f"t={NOW},v1={'0' * 64},v1={'1' * 64}"
    assert "none of 2 v1 digests matches" in verify_text(header).output


def test_the_verdict_is_available_as_json() -> None:
    verdict = json.loads(verify_text(HEADER, BODY + b"\n", "--json").output)
    assert (verdict["ok"], verdict["result"]) == (False, "mismatch")
    assert verdict["cause"].startswith("the signature matches once the trailing newline is dropped")


def test_an_unresolvable_secret_is_named() -> None:
    result = verify_text(HEADER, secret="env:RELAY_NO_SUCH_VARIABLE")
    assert result.exit_code == 2
    assert "the environment variable RELAY_NO_SUCH_VARIABLE is not set" in result.output
