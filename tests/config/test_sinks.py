"""All faults of a sink are reported at once, even if some of its values are unreadable."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from relay import sinks
from relay.config import load
from relay.config.table import bare
from relay.core.config_values import Secret
from relay.core.errors import ConfigError
from relay.core.proxies import OutboundSettings
from relay.core.sink import SinkSettings

HEAD = '[[source]]\nname = "main"\npath = "/webhooks"\nsecrets = ["a-secret-of-the-tests"]\n'
WHSEC = "whsec_bWFrZSBpdCB3aXRoIG9wZW5zc2wgcmFuZA=="

VALID: dict[str, dict[str, str]] = {
    "amqp": {
        "url": '"amqps://relay:secret@broker.invalid/events"',
        "exchange": '"events"',
        "routing_key": '"{{ event }}"',
    },
    "http": {
        "url": '"https://crm.invalid/hook"',
        "headers": '{ x-own = "value" }',
        "method": '"PATCH"',
        "body": '{ id = "{{ id }}" }',
        "proxy_url": '"http://proxy.invalid:3128"',
        "signing_secrets": f'["{WHSEC}"]',
        "success": '"ok"',
        "delivered_on": "[302]",
        "retry_on": "[403]",
        "park_on": "[400]",
        "refuse_on": "[300]",
        "retry_after_header": '"X-RateLimit-Reset"',
        "oauth2": '{ token_url = "https://idp.invalid/", client_id = "a", client_secret = "b" }',
    },
    "kafka": {
        "brokers": '"kafka.invalid:9092"',
        "topic": '"{{ event }}"',
        "key": '"{{ source }}"',
        "security_protocol": '"SASL_SSL"',
        "sasl_mechanism": '"PLAIN"',
        "username": '"relay"',
        "password": '"secret"',
    },
    "mqtt": {
        "url": '"mqtts://broker.invalid"',
        "username": '"relay"',
        "password": '"secret"',
        "client_id": '"relay"',
        "topic": '"relay/{{ event }}"',
        "unheard": '"park"',
    },
    "nats": {
        "servers": '"tls://user:secret@nats.invalid"',
        "subject": '"relay.{{ event }}"',
        "stream": '"RELAY"',
    },
    "pubsub": {
        "project": '"my-project-123"',
        "topic": '"relay-{{ event }}"',
        "ordering_key": '"{{ source }}"',
        "endpoint_url": '"https://pubsub.invalid"',
        "proxy_url": '"direct"',
        "emulator_host": '"127.0.0.1:8085"',
    },
    "redis": {
        "url": '"rediss://main.invalid/0"',
        "stream": '"relay:{{ event }}"',
        "sentinel": '{ hosts = ["sentinel.invalid:26379"], password = "secret" }',
    },
    "slack": {
        "url": '"https://hooks.slack.invalid/x"',
        "proxy_url": '"http://relay:secret@proxy.invalid"',
        "text": '"{{ event }}"',
        "blocks": '[{ type = "section", text = { type = "mrkdwn", text = "{{ event }}" } }]',
        "digest": '{ over = 5, every = "1m" }',
    },
    "sqs": {
        "queue_url": '"https://sqs.eu-west-1.amazonaws.com/123456789012/relay.fifo"',
        "region": '"eu-west-1"',
        "endpoint_url": '"https://sqs.invalid"',
        "proxy_url": '"direct"',
        "aws_access_key_id": '"key"',
        "aws_secret_access_key": '"secret"',
        "group": '"{{ source }}"',
    },
    "stdout": {},
}

INVALID: dict[str, dict[str, str]] = {
    "amqp": {
        "url": '"http://broker.invalid"',
        "exchange": '"a;b"',
        "routing_key": '"{{"',
    },
    "http": {
        "url": '"ftp://crm.invalid"',
        "signing_secrets": '["whsec_!"]',
        "success": '"a ="',
        "retry_on": "[99]",
        "refuse_on": "[1000]",
        "retry_after_header": '"a b"',
        "oauth2": '{ token_url = "no", client_id = "a", client_secret = "b" }',
        "body": '"{{"',
    },
    "kafka": {"brokers": '"a b"', "topic": '"a b"', "key": '"{{"'},
    "mqtt": {"url": '"http://broker.invalid"', "client_id": '"\\u0007"', "topic": '"a/+"'},
    "nats": {"servers": '"http://nats.invalid"', "subject": '"a.*"'},
    "pubsub": {"project": '"a b"', "topic": '"goog"', "ordering_key": '"{{"'},
    "redis": {"url": '"http://redis.invalid"', "stream": '""'},
    "slack": {"url": '"no"', "text": '"{{"'},
    "sqs": {"queue_url": '"no"', "endpoint_url": '"no"', "group": '"{{"'},
    "stdout": {},
}
COMMON = ("events", "sources", "when", "concurrency", "rate", "timeout", "retry")
CHECKED_TOGETHER = {
    ("amqp", "exchange"): ("routing_key",),
    ("mqtt", "username"): ("url", "client_id"),
    ("mqtt", "password"): ("url", "client_id"),
    ("mqtt", "client_id"): ("url",),
    ("slack", "blocks"): ("text",),
}
"""Keys whose checks need the value of another key: void while that one is unreadable."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Create a certificate with its key, usable as a CA."""
    folder = tmp_path_factory.mktemp("files")
    options = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    names = ("-keyout", "own.key", "-out", "own.pem", "-subj", "/CN=own")
    command = ("openssl", "req", "-x509", *options, *names)
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    own, key = f'"{folder}/own.pem"', f'"{folder}/own.key"'
    return {"ca_file": own, "client_cert_file": own, "client_key_file": key}


def own_keys(kind: str) -> Iterator[str]:
    for field in msgspec.structs.fields(sinks.load(kind).Settings):
        if field.name not in SinkSettings.__struct_fields__ and field.type is not OutboundSettings:
            yield field.name


def valid_keys(kind: str, files: dict[str, str]) -> dict[str, str]:
    """Return valid values for the type's keys."""
    every = {"format": '"raw"', **files, **VALID[kind]}
    return {key: every[key] for key in own_keys(kind) if key in every}


def faults(folder: Path, kind: str, keys: dict[str, str]) -> list[str]:
    """Return the keys at fault, or the message if the sink as a whole is at fault."""
    file = folder / "config.toml"
    lines = "".join(f"{key} = {value}\n" for key, value in keys.items())
    file.write_text(f'{HEAD}[[sink]]\nname = "a"\ntype = "{kind}"\n{lines}', encoding="utf-8")
    try:
        load(file, {})
    except ConfigError as refusal:
        places = ((fault.path, fault.message) for fault in refusal.faults)
        return [path.removeprefix("sink[0] (a).") if "." in path else text for path, text in places]
    return []


EVERY_KEY = [(kind, key) for kind in VALID for key in (*own_keys(kind), *COMMON)]


def test_every_type_has_valid_and_invalid_settings_here() -> None:
    assert set(VALID) == set(INVALID) == set(sinks.names())


@pytest.mark.parametrize("kind", VALID)
def test_valid_settings_have_no_fault(tmp_path: Path, files: dict[str, str], kind: str) -> None:
    assert faults(tmp_path, kind, valid_keys(kind, files)) == []


@pytest.mark.parametrize(("kind", "key"), EVERY_KEY)
def test_an_unreadable_value_is_the_only_fault(
    tmp_path: Path, files: dict[str, str], kind: str, key: str
) -> None:
    value = "-5" if key == "concurrency" else "5"
    assert faults(tmp_path, kind, valid_keys(kind, files) | {key: value}) == [key]


SECRETS = [
    (kind, field.name)
    for kind in VALID
    for field in msgspec.structs.fields(sinks.load(kind).Settings)
    if isinstance(bare(field.type), type) and issubclass(bare(field.type), Secret)
]


@pytest.mark.parametrize(("kind", "key"), SECRETS)
def test_a_missing_secret_is_the_only_fault(
    tmp_path: Path, files: dict[str, str], kind: str, key: str
) -> None:
    assert faults(tmp_path, kind, valid_keys(kind, files) | {key: '"env:NOT_SET"'}) == [key]


@pytest.mark.parametrize(
    ("kind", "key"),
    [(kind, key) for kind, key in EVERY_KEY if key in VALID[kind] or key in COMMON],
)
def test_other_keys_are_checked_despite_an_unreadable_value(
    tmp_path: Path, files: dict[str, str], kind: str, key: str
) -> None:
    others = {
        other: wrong
        for other, wrong in INVALID[kind].items()
        if other not in (key, *CHECKED_TOGETHER.get((kind, key), ()))
    }
    reported = faults(tmp_path, kind, valid_keys(kind, files) | {key: "{ a = 5 }"} | others)
    assert set(others) <= {re.split(r"[.\[]", key_path)[0] for key_path in reported}


def test_a_check_of_two_keys_does_not_report_an_unreadable_one(
    tmp_path: Path, files: dict[str, str]
) -> None:
    without = valid_keys("http", files) | {"client_cert_file": "5", "client_key_file": '"/nowhere"'}
    assert faults(tmp_path, "http", without) == ["client_cert_file"]


def test_a_missing_key_is_reported_beside_an_unreadable_one_that_needs_it(
    tmp_path: Path, files: dict[str, str]
) -> None:
    keys = valid_keys("kafka", files) | {"password": '"env:NOT_SET"'}
    del keys["username"]
    assert faults(tmp_path, "kafka", keys) == [
        "password",
        "username, password: SASL_SSL needs both",
    ]
