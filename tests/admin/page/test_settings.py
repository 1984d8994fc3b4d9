"""A sink's settings as the page lists them."""

import importlib
import pkgutil

import msgspec
import pytest

from relay import sinks
from relay.admin.page.text.settings import settings_of_sink
from relay.core.config_values import Duration, Rate, Secret, SecretTemplate
from relay.core.retry import RetryPolicy
from relay.core.sink import SinkSettings
from relay.outbound.http.oauth2 import OAuth2Settings
from relay.sinks.http import Settings as Http

SECRET = "a-secret-that-nobody-may-see"


class Every(SinkSettings, frozen=True, kw_only=True):
    """Settings of every kind."""

    token: Secret | None = None
    tokens: tuple[Secret, ...] = ()
    named: dict[str, Secret] = msgspec.field(default_factory=dict)
    is_on: bool = True
    ratio: float = 0.5
    hosts: str | tuple[str, ...] = ()


def values(sink: SinkSettings) -> dict[str, str]:
    return {each.key: each.value for each in settings_of_sink(sink)}


def test_secrets_are_said_to_be_set() -> None:
    sink = Every(
        name="a",
        type="b",
        token=Secret(SECRET),
        tokens=(Secret(SECRET), Secret(SECRET)),
        named={"X-Key": Secret(SECRET)},
    )
    shown = values(sink)
    assert (shown["token"], shown["tokens"], shown["named"]) == ("set", "set, set", "X-Key: set")
    assert SECRET not in str(settings_of_sink(sink))


def test_of_oauth2_the_host_of_the_token_endpoint_and_the_scopes_are_shown() -> None:
    oauth2 = OAuth2Settings(
        token_url=Secret("https://idp.test/marked"),
        client_id=Secret(SECRET),
        client_secret=Secret(SECRET),
        scopes=("leads.write",),
        endpoint_params={"audience": Secret(SECRET)},
    )
    shown = values(
        Http(name="a", type="http", url=SecretTemplate("https://crm.test/"), oauth2=oauth2)
    )
    assert {key: value for key, value in shown.items() if key.startswith("oauth2")} == {
        "oauth2.token_url": "https://idp.test/…",
        "oauth2.client_id": "set",
        "oauth2.client_secret": "set",
        "oauth2.scopes": "leads.write",
        "oauth2.endpoint_params": "audience: set",
    }


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://hooks.slack.com/services/T0/B0/x", "https://hooks.slack.com/…"),
        ("https://user:pass@crm.test:8443/a?key=b#c", "https://crm.test:8443/…"),
        ("https://[::1]:8443/a", "https://::1:8443/…"),
        ("nats://token@a.test:4222,nats://b.test", "set"),
        ("nats://a.test,secret:word", "set"),
        ("a-secret-that-is-no-url", "set"),
        ("https://a.test:port/", "set"),
        ("http://[/", "set"),
    ],
)
def test_only_the_host_of_a_url_is_shown(url: str, shown: str) -> None:
    assert values(Http(name="a", type="http", url=SecretTemplate(url)))["url"] == shown


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://relay:marked@proxy.test:3128", "http://proxy.test:3128/…"),
        ("direct", "direct"),
    ],
)
def test_of_a_sinks_own_proxy_the_host_is_shown_or_that_there_is_none(url: str, shown: str) -> None:
    sink = Http(
        name="a", type="http", url=SecretTemplate("https://crm.test/"), proxy_url=Secret(url)
    )
    assert {key: value for key, value in values(sink).items() if "proxy" in key} == {
        "proxy_url": shown
    }


def test_values_are_written_with_their_units() -> None:
    sink = Every(
        name="a",
        type="b",
        timeout=Duration.parse("90s"),
        rate=Rate.parse("30/m"),
        retry=RetryPolicy(give_up_after=Duration.parse("2d")),
        hosts=("a:1", "b:2"),
        is_on=False,
    )
    assert values(sink) == {
        "concurrency": "1",
        "rate": "30 per min",
        "timeout": "1 min 30 s",
        "enrich": "false",
        "enrich_timeout": "2.0 s",
        "retry.first": "1.0 s",
        "retry.factor": "2",
        "retry.max": "1 h",
        "retry.give_up_after": "2 d",
        "reconstructed": "false",
        "token": "not set",
        "tokens": "none",
        "named": "none",
        "is_on": "false",
        "ratio": "0.5",
        "hosts": "a:1, b:2",
    }


def test_given_settings_come_before_the_defaults() -> None:
    listed = settings_of_sink(Every(name="a", type="b", ratio=0.9, rate=Rate.parse("1/h")))
    assert [each.key for each in listed if not each.is_default] == ["rate", "ratio"]
    assert [each.is_default for each in listed] == sorted(each.is_default for each in listed)


SECRETS = (Secret, Secret | None, SecretTemplate)


@pytest.mark.parametrize("name", [each.name for each in pkgutil.iter_modules(sinks.__path__)])
def test_no_secret_of_any_sink_is_listed(name: str) -> None:
    kind = importlib.import_module(f"relay.sinks.{name}").Settings
    fields = msgspec.structs.fields(kind)
    secret = {each.name for each in fields if each.type in SECRETS}
    required = {each.name for each in fields if each.required}
    given = {each: Secret(SECRET) if each in secret else "a" for each in required | secret}
    shown = settings_of_sink(kind(**given))
    assert SECRET not in str(shown)
    assert {each.key for each in shown if each.value == "set"} == secret
