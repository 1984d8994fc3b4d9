"""Changes between two configs are reported by name, changed files by path."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from relay.config import Config, load, refresh
from relay.config.changes import changes, fixed
from relay.config.document import References, mark
from relay.core.config_values import FILE_MAX_BYTES
from relay.core.errors import ConfigError

SECRET = "a-good-secret-of-32-characters-x"
SOURCE = '[[source]]\nname = "{}"\npath = "/{}"\nsecrets = ["env:SECRET"]\n'
SINK = '[[sink]]\nname = "{}"\ntype = "{}"\n{}\n'
URL = 'url = "http://127.0.0.1:9/"'

Read = Callable[..., Config]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def read(*tables: str, secret: str = SECRET) -> Config:
        path = tmp_path / "config.toml"
        path.write_text("".join(tables) + SOURCE.format("main", "hooks"), encoding="utf-8")
        return load(path, {"SECRET": secret})

    return read


def test_the_same_config_changes_nothing(read: Read) -> None:
    tables = (SINK.format("a", "stdout", ""), SINK.format("b", "http", URL))
    diff = changes(read(*tables), read(*reversed(tables)))
    assert diff.sinks.added == diff.sinks.changed == diff.sinks.removed == ()
    assert diff.sources.added == diff.sources.changed == diff.sources.removed == ()
    assert diff.rerouted == diff.settings == ()


@pytest.mark.parametrize(
    "more",
    [
        'events = ["lead.*"]',
        'sources = ["main"]',
        "when = \"event == 'lead.captured'\"",
        'ordered = "video"',
    ],
)
def test_a_sink_with_another_route_is_rerouted(read: Read, more: str) -> None:
    old, new = SINK.format("a", "stdout", ""), SINK.format("a", "stdout", more)
    diff = changes(read(old), read(new))
    assert (diff.rerouted, diff.sinks.changed) == (("a",), ())


@pytest.mark.parametrize("more", ["concurrency = 2", 'rate = "1/s"', "retry = { factor = 3.0 }"])
def test_a_sink_with_another_value_is_changed(read: Read, more: str) -> None:
    diff = changes(read(SINK.format("a", "stdout", "")), read(SINK.format("a", "stdout", more)))
    assert (diff.rerouted, diff.sinks.changed) == ((), ("a",))


def test_a_sink_of_another_type_is_changed(read: Read) -> None:
    old, new = SINK.format("a", "stdout", ""), SINK.format("a", "http", URL)
    assert changes(read(old), read(new)).sinks.changed == ("a",)


def test_a_source_with_another_secret_is_changed(read: Read) -> None:
    diff = changes(read(), read(secret="another-good-secret-of-its-own-y"))
    assert (diff.sources.changed, diff.sinks.changed) == (("main",), ())


def test_changed_keys_of_other_tables_are_listed_by_path(read: Read) -> None:
    new = read('[server]\nmax_body = "2MiB"\n[admin]\ntoken = "env:SECRET"\n')
    assert changes(read(), new).settings == ("server.max_body", "admin.token")
    assert fixed(read(), new) == ()


def test_a_way_to_the_same_database_can_change(read: Read) -> None:
    store = '[store]\ntype = "postgres"\ndsn = "host=a password={}"\nschema = "{}"\n'
    old, new = read(store.format("one", "x")), read(store.format("other", "x"))
    assert fixed(old, new) == ()
    assert changes(old, new).settings == ("store.dsn",)
    (fault,) = fixed(old, read(store.format("other", "y")))
    assert fault.path == "store.schema"


def test_every_key_that_only_a_restart_can_change_is_a_fault(read: Read) -> None:
    tables = (
        '[server]\nlisten = "127.0.0.1:1"\nadmin_listen = "127.0.0.1:2"\nmax_body = "2MiB"\n',
        '[store]\npath = "other.db"\nmin_free = "1MiB"\n',
        '[log]\nlevel = "error"\n',
    )
    assert [fault.path for fault in fixed(read(), read(*tables))] == [
        "server.listen",
        "server.admin_listen",
        "store.path",
        "store.min_free",
        "log.level",
    ]


def test_refresh_checks_the_same_text_with_new_secrets_and_ignores_the_file(
    read: Read, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("the-first-secret-of-it")
    other = SOURCE.format("other", "other").replace("env:SECRET", f"file:{tmp_path}/secret")
    config = read(other)
    (tmp_path / "config.toml").write_text("half")
    (tmp_path / "secret").write_text("a-second-secret-of-it")
    anew = refresh(config, {"SECRET": SECRET})
    assert changes(config, anew).sources.changed == ("other",)
    assert anew.references.keys() == {f"{tmp_path}/secret"}
    assert anew.references != config.references
    (tmp_path / "secret").unlink()
    with pytest.raises(ConfigError, match=r"other.*secrets\[0\]: the file"):
        refresh(config, {"SECRET": SECRET})


def test_neither_the_document_nor_a_secret_is_printed_with_a_config(
    read: Read, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("the-first-secret-of-it")
    text = repr(
        read(
            SOURCE.format("other", "other").replace("env:SECRET", f"file:{tmp_path}/secret"),
            SOURCE.format("third", "third").replace("env:SECRET", "a-plain-secret-of-its-own"),
        )
    )
    assert "the-first-secret" not in text
    assert "a-plain-secret" not in text
    assert SECRET not in text


def test_a_mark_depends_on_the_content_alone(tmp_path: Path) -> None:
    file = tmp_path / "file"
    assert mark(str(file)) is None
    file.write_bytes(b"a")
    first = mark(str(file))
    os.utime(file, (1, 1))
    assert mark(str(file)) == first is not None
    file.write_bytes(b"b")
    assert mark(str(file)) not in (first, None)
    file.write_bytes(b"b" * (FILE_MAX_BYTES + 1))
    assert mark(str(file)) is None
    assert mark(str(tmp_path)) is None


def test_a_pipe_is_not_read_twice(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert mark(str(tmp_path / "pipe")) is None
    references = References()
    references.note(str(tmp_path / "pipe"))
    assert references.marks == {}
