"""The example and the documentation agree with the settings on every key."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from relay import sinks
from relay.config import AdminSettings, ServerSettings, load
from relay.config.rules import RULES
from relay.config.table import Findings, KeyPath, TableReader
from relay.core.api_settings import ApiSettings
from relay.core.authentication import SigningSecret, SourceSettings
from relay.core.config_values import Secret
from relay.core.proxies import OutboundSettings
from relay.core.retry import RetryPolicy
from relay.core.sink import ProxiedSettings, SinkSettings
from relay.outbound.http.oauth2 import OAuth2Settings
from relay.sinks.slack.burst import DigestSettings
from relay.store import StoreSettings
from relay.store.postgres.settings import PostgresSettings
from relay.store.sqlite.settings import SqliteSettings
from relay.telemetry.log import LogSettings

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "config.example.toml"
PAGE = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
EXAMPLE_ENVIRON = {
    "RELAY_SECRET": "a-good-secret-of-32-characters-x",
    "RELAY_ADMIN_TOKEN": "0f9a8b7c6d5e4f3a2b1c",
    "SLACK_URL": "https://hooks.slack.com/services/T000/B000/marked",
    "CRM_URL": "https://crm.example/hook",
    "CRM_AUTH": "Bearer marked-token",
    "CRM_SIGNING": "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=",
}

FieldInfo = msgspec.structs.FieldInfo

SECTIONS: dict[str, type[msgspec.Struct]] = {
    "[server]": ServerSettings,
    "[store]": SqliteSettings,
    "[admin]": AdminSettings,
    "[log]": LogSettings,
    "[outbound]": OutboundSettings,
    "[[source]]": SourceSettings,
    "[sink.retry]": RetryPolicy,
    "[sink.oauth2]": OAuth2Settings,
    "[[source.secrets]]": SigningSecret,
    "[source.api]": ApiSettings,
}


def fields_of(kind: type[msgspec.Struct]) -> list[FieldInfo]:
    """Return the fields that are keys of a table: `[outbound]` is in the document once."""
    return [field for field in msgspec.structs.fields(kind) if field.type is not OutboundSettings]


def own_fields(type_: str) -> list[FieldInfo]:
    """Return the sink's own fields, and common fields with another default."""
    common = {field.name: field.default for field in msgspec.structs.fields(SinkSettings)}
    fields = fields_of(sinks.load(type_).Settings)
    return [field for field in fields if common.get(field.name, FieldMissing) != field.default]


def postgres_fields() -> list[FieldInfo]:
    """Return the fields that a store on SQLite does not have."""
    fields = msgspec.structs.fields(PostgresSettings)
    return [field for field in fields if field.name not in StoreSettings.__struct_fields__]


class FieldMissing:
    """Equal to no default."""


def read(raw: object, field: FieldInfo) -> Any:
    findings = Findings()
    place = KeyPath(field.name, "")
    value = TableReader({}, EXAMPLE_ENVIRON, findings).value(raw, field.type, place)
    assert not findings.faults
    return value.build() if hasattr(value, "build") else value


def default(field: FieldInfo) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default


def documented() -> Iterator[tuple[str, FieldInfo]]:
    for heading, kind in SECTIONS.items():
        yield from ((heading, field) for field in fields_of(kind))
    yield from (("[store]", field) for field in postgres_fields())
    yield from (("[[sink]]", field) for field in msgspec.structs.fields(SinkSettings))
    for type_ in sinks.names():
        yield from ((f"Sinks of type {type_}", field) for field in own_fields(type_))


@pytest.mark.parametrize(
    ("heading", "field"), list(documented()), ids=lambda part: getattr(part, "name", part)
)
def test_the_documentation_lists_each_key_with_its_default(heading: str, field: FieldInfo) -> None:
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    row = re.search(rf"^\| `{field.name}` \| (.*?) \| .+ \|$", section, re.MULTILINE)
    assert row is not None, f"{field.name} is missing"
    if field.required:
        assert row[1] == "required"
    elif default(field) is None:
        assert row[1] == "none"
    else:
        assert read(tomllib.loads(f"x = {row[1].strip('`')}")["x"], field) == default(field)


def test_the_documentation_lists_no_unknown_key() -> None:
    known = {field.name for _, field in documented()}
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)) <= known


@pytest.fixture(scope="module")
def example() -> dict[str, Any]:
    """Return the example with its commented-out keys and sinks enabled."""
    text = EXAMPLE.read_text(encoding="utf-8")
    return tomllib.loads(re.sub(r"^#(?=\w+ = |\[\[?sink|\[source)", "", text, flags=re.MULTILINE))


def tables_of(example: dict[str, Any]) -> list[tuple[dict[str, Any], type[msgspec.Struct]]]:
    return [
        (example["server"], ServerSettings),
        (example["store"], SqliteSettings),
        (example["admin"], AdminSettings),
        (example["log"], LogSettings),
        (example["outbound"], OutboundSettings),
        (example["source"][0], SourceSettings),
        (example["sink"][0]["retry"], RetryPolicy),
        (example["source"][0].get("api", {}), ApiSettings),
        (example["sink"][0].get("oauth2", {}), OAuth2Settings),
        *((sink, sinks.load(sink["type"]).Settings) for sink in example["sink"]),
    ]


def test_the_example_shows_every_key(example: dict[str, Any]) -> None:
    for table, kind in tables_of(example)[:9]:
        assert {field.name for field in fields_of(kind)} <= set(table)
    assert set(SinkSettings.__struct_fields__) <= set(example["sink"][0])
    for type_ in sinks.names():
        (table,) = [table for table in example["sink"] if table["type"] == type_]
        assert {field.name for field in own_fields(type_)} <= set(table)


def test_values_in_the_example_are_the_defaults() -> None:
    samples = {"token", "headers", "signing_secrets", "events", "retry"}
    for table, kind in tables_of(tomllib.loads(EXAMPLE.read_text(encoding="utf-8"))):
        for field in msgspec.structs.fields(kind):
            if field.name in table and not field.required and field.name not in samples:
                assert read(table[field.name], field) == default(field), field.name


def test_the_example_is_valid_with_the_environment_in_its_header() -> None:
    head = EXAMPLE.read_text(encoding="utf-8").partition("\n[server]")[0]
    assert set(re.findall(r"^#   ([A-Z_]+) ", head, re.MULTILINE)) == set(EXAMPLE_ENVIRON)
    assert load(EXAMPLE, EXAMPLE_ENVIRON).warnings == ()


def test_the_commented_store_on_postgresql_is_valid_with_the_defaults(tmp_path: Path) -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    store = "\n".join(re.findall(r"^#   ((?:type|dsn|schema|pool_size) = .*)$", text, re.MULTILINE))
    path = tmp_path / "config.toml"
    path.write_text(re.sub(r"(?s)\[store\].*?(?=\[admin\])", f"[store]\n{store}\n", text))
    environ = EXAMPLE_ENVIRON | {"DATABASE_URL": "host=db.example"}
    assert load(path, environ).store == PostgresSettings(dsn=Secret("host=db.example"))


def test_the_commented_templates_of_the_example_are_valid(tmp_path: Path) -> None:
    text = re.sub(
        r"^#(?=(text|blocks|sources|when|rate|success|\w+_on|retry_after_header) = )",
        "",
        EXAMPLE.read_text(encoding="utf-8"),
        flags=re.MULTILINE,
    )
    path = tmp_path / "config.toml"
    path.write_text(text, encoding="utf-8")
    assert load(path, EXAMPLE_ENVIRON).warnings == ()


def test_every_rule_names_a_field() -> None:
    kinds = {key.strip("[]"): kind for key, kind in SECTIONS.items()}
    fields = {f"{name}.{key}" for name, kind in kinds.items() for key in kind.__struct_fields__}
    fields |= {f"store.{field.name}" for field in postgres_fields()}
    fields |= {f"sink.{key}" for key in SinkSettings.__struct_fields__}
    fields |= {f"sink.{key}" for key in ProxiedSettings.__struct_fields__}
    fields |= {f"sink.digest.{key}" for key in DigestSettings.__struct_fields__}
    assert {rule.replace("[]", "") for rule in RULES} <= fields


def test_no_secret_shows_in_the_config() -> None:
    text = repr(load(EXAMPLE, EXAMPLE_ENVIRON))
    assert "***" in text
    for value in EXAMPLE_ENVIRON.values():
        assert value not in text
