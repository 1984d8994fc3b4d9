"""`[outbound]` reaches each table that it is for; a proxy of the environment is not overlooked."""

from collections.abc import Callable
from pathlib import Path

import pytest

from relay.config import Config, load, load_apis
from relay.config.changes import changes
from relay.core.config_values import Secret
from relay.core.errors import ConfigError
from relay.core.proxies import Proxies

SOURCE = """
[[source]]
name = "main"
path = "/webhooks"
secrets = ["a-secret-of-the-tests"]
"""
API = """
[source.api]
base_url = "https://api.example"
key = "a-key-of-the-tests"
"""
CRM = """
[[sink]]
name = "crm"
type = "http"
url = "https://crm.example"
"""
QUEUE = """
[[sink]]
name = "queue"
type = "sqs"
queue_url = "https://sqs.eu-west-1.amazonaws.com/1/q"
"""
LINES = """
[[sink]]
name = "lines"
type = "stdout"
"""
PROXY = "http://relay:marked@proxy.example:3128"
ADOPTABLE = {"HTTPS_PROXY": "http://environment.example:3128"}

Read = Callable[..., Config]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config.toml"


@pytest.fixture
def read(path: Path) -> Read:
    def read(text: str, **environ: str) -> Config:
        path.write_text(text, encoding="utf-8")
        return load(path, environ)

    return read


def outbound(**keys: str) -> str:
    lines = "".join(f"{key} = {value}\n" for key, value in keys.items())
    return f"[outbound]\n{lines}"


def way(settings: object, url: str) -> str | None:
    """Return the proxy of a request by a sink's or an API's settings."""
    own = getattr(settings, "proxy_url", None)
    return Proxies.of(settings.outbound, own, environ=ADOPTABLE).url_for(url)  # type: ignore[attr-defined]


def test_sinks_and_apis_hold_the_documents_table(read: Read) -> None:
    head = outbound(proxy_url='"env:PROXY"', no_proxy='"10.0.0.0/8"')
    config = read(head + SOURCE + API + CRM + QUEUE + LINES, PROXY=PROXY)
    crm, queue, lines = config.sinks
    for settings in (crm, queue, config.sources[0].api):
        assert way(settings, "https://crm.example") == PROXY
        assert way(settings, "https://10.0.0.1") is None
    assert not hasattr(lines, "outbound")


def test_a_sink_may_have_a_proxy_of_its_own_or_none(read: Read) -> None:
    own = CRM + 'proxy_url = "http://other.example:8080"\n' + QUEUE + 'proxy_url = "direct"\n'
    crm, queue = read(outbound(proxy_url=f'"{PROXY}"') + SOURCE + own).sinks
    assert way(crm, "https://crm.example") == "http://other.example:8080"
    assert way(queue, "https://crm.example") is None


def test_commands_that_read_the_apis_alone_go_the_same_way(path: Path) -> None:
    path.write_text(outbound(proxy_url=f'"{PROXY}"') + SOURCE + API, encoding="utf-8")
    api = load_apis(path, {})["main"]
    assert way(api, "https://api.example") == PROXY


def test_credentials_of_a_proxy_show_nowhere(read: Read) -> None:
    config = read(outbound(proxy_url=f'"{PROXY}"') + SOURCE + API + CRM)
    assert "marked" not in repr(config)


def test_another_way_out_replaces_the_sinks_that_it_is_for(read: Read) -> None:
    old = read(outbound(proxy_url=f'"{PROXY}"') + SOURCE + API + CRM + LINES)
    new = read(outbound(proxy_url='"direct"') + SOURCE + API + CRM + LINES)
    diff = changes(old, new)
    assert (diff.sinks.changed, diff.sources.changed) == (("crm",), ("main",))
    assert diff.settings == ("outbound.proxy_url",)


def test_another_way_out_replaces_no_sink_that_goes_directly(read: Read) -> None:
    own = CRM + 'proxy_url = "direct"\n'
    old = read(outbound(proxy_url=f'"{PROXY}"') + SOURCE + own)
    diff = changes(old, read(outbound(no_proxy='"*"') + SOURCE + own))
    assert diff.sinks.changed == diff.rerouted == ()
    diff = changes(old, read(outbound(no_proxy='"*"') + SOURCE + CRM))
    assert diff.sinks.changed == ("crm",)


def texts(config: Config) -> list[str]:
    return [str(warning) for warning in config.warnings]


def test_a_proxy_of_the_environment_that_not_all_requests_take_is_warned_of(read: Read) -> None:
    (text,) = texts(read(SOURCE + CRM + QUEUE, **ADOPTABLE))
    assert text.startswith(
        "outbound.proxy_from_environment: HTTPS_PROXY is set, but only queue goes through it: "
    )
    (text,) = texts(read(SOURCE + CRM, HTTP_PROXY="http://a", https_proxy="http://b"))
    assert "HTTP_PROXY and https_proxy is set, but no request goes through it" in text
    (text,) = texts(read(SOURCE + API + QUEUE, **ADOPTABLE))
    assert "but only queue goes through it" in text


@pytest.mark.parametrize(
    "text",
    [
        SOURCE + QUEUE,
        SOURCE + LINES,
        SOURCE + CRM + 'proxy_url = "direct"\n' + QUEUE,
        outbound(proxy_url='"direct"') + SOURCE + CRM,
        outbound(proxy_url=f'"{PROXY}"') + SOURCE + CRM,
        outbound(proxy_from_environment="true") + SOURCE + CRM,
    ],
)
def test_it_is_not_warned_of_where_nothing_is_left_open(read: Read, text: str) -> None:
    assert texts(read(text, **ADOPTABLE)) == []


def test_without_a_proxy_in_the_environment_there_is_no_warning(read: Read) -> None:
    assert texts(read(SOURCE + CRM + QUEUE, HTTPS_PROXY="", NO_PROXY="*")) == []


def test_an_environment_without_proxies_is_warned_of_where_it_is_asked_for(read: Read) -> None:
    (text,) = texts(read(outbound(proxy_from_environment="true") + SOURCE + CRM))
    assert text.endswith("finds neither HTTP_PROXY nor HTTPS_PROXY: requests go directly")


def test_a_variable_that_holds_no_usable_proxy_is_named_once_without_its_value(
    read: Read,
) -> None:
    text = outbound(proxy_from_environment="true") + SOURCE + CRM + QUEUE
    with pytest.raises(ConfigError) as caught:
        read(text, HTTPS_PROXY="socks5://marked:1080")
    (fault,) = caught.value.faults
    assert fault.path == "outbound.proxy_from_environment"
    assert fault.message.startswith("HTTPS_PROXY holds no URL of a proxy: expected http:// and")
    assert "marked" not in fault.message


def test_a_proxy_of_a_broker_is_refused_alone(read: Read) -> None:
    broker = '[[sink]]\nname = "bus"\ntype = "nats"\nservers = "nats://a"\n'
    with pytest.raises(ConfigError) as caught:
        read(SOURCE + broker + f'proxy_url = "{PROXY}"\n')
    (fault,) = caught.value.faults
    assert str(fault) == (
        "sink[0] (bus).proxy_url: is for sinks that speak HTTP: one of type nats goes through no "
        "proxy"
    )


def test_a_secret_is_not_lost_on_the_way(read: Read) -> None:
    config = read(outbound(proxy_url=f'"{PROXY}"') + SOURCE + CRM)
    assert config.outbound.proxy_url == Secret(PROXY)
