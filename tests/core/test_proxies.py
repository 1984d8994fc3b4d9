"""The proxy that a request goes through follows from the config, the environment and its URL."""

import pytest

from relay.core.config_values import Secret
from relay.core.proxies import (
    OutboundSettings,
    Proxies,
    fault_of_exceptions,
    fault_of_url,
    is_proxied,
    named_in,
    unusable,
)
from relay.core.sink import ProxiedSettings, SinkSettings

PROXY = "http://relay:marked@proxy.example:3128"
OTHER = "http://other.example:8080"


def through(url: str, no_proxy: str) -> bool:
    outbound = OutboundSettings(proxy_url=Secret(PROXY), no_proxy=no_proxy)
    return Proxies.of(outbound, environ={}).url_for(url) == PROXY


@pytest.mark.parametrize(
    ("no_proxy", "url"),
    [
        ("*", "https://crm.example/"),
        ("crm.example", "https://crm.example/hook"),
        ("crm.example", "https://eu.crm.example/hook"),
        ("crm.example", "https://CRM.Example./hook"),
        ("CRM.example.", "https://crm.example/hook"),
        (".crm.example", "https://eu.crm.example/"),
        ("*.crm.example", "https://a.b.crm.example/"),
        ("crm.example:8443", "https://crm.example:8443/"),
        ("crm.example:443", "https://crm.example/"),
        ("crm.example:80", "http://crm.example/"),
        ("*:8443", "https://crm.example:8443/"),
        ("other.example,crm.example", "https://crm.example/"),
        (" other.example , crm.example ", "https://crm.example/"),
        ("other.example crm.example", "https://crm.example/"),
        ("localhost", "http://localhost:8080/"),
        ("10.1.2.3", "http://10.1.2.3/"),
        ("10.1.2.3:8080", "http://10.1.2.3:8080/"),
        ("10.0.0.0/8", "https://10.200.0.1/"),
        ("10.1.2.3/8", "https://10.200.0.1/"),
        ("10.0.0.0/8:443", "https://10.200.0.1/"),
        ("10.0.0.0/8", "https://[::ffff:10.200.0.1]/"),
        ("::1", "http://[::1]:8080/"),
        ("[::1]", "http://[::1]/"),
        ("[::1]:8080", "http://[::1]:8080/"),
        ("fd00::/8", "https://[fd12::1]/"),
        ("2001:DB8::1", "https://[2001:db8:0::1]/"),
    ],
)
def test_an_exception_is_reached_without_the_proxy(no_proxy: str, url: str) -> None:
    assert fault_of_exceptions(no_proxy) is None
    assert not through(url, no_proxy)


@pytest.mark.parametrize(
    ("no_proxy", "url"),
    [
        ("", "https://crm.example/"),
        (",", "https://crm.example/"),
        ("crm.example", "https://notcrm.example/"),
        ("crm.example", "https://crm.example.org/"),
        (".crm.example", "https://crm.example/"),
        ("*.crm.example", "https://crm.example/"),
        ("crm.example:8443", "https://crm.example/"),
        ("*:8443", "https://crm.example/"),
        ("10.0.0.0/8", "https://11.0.0.1/"),
        ("10.0.0.0/8", "https://ten.example/"),
        ("10.0.0.0/8:80", "https://10.0.0.1/"),
        ("10.1.2.3", "https://10.1.2.30/"),
        ("1.2.3", "https://10.1.2.3/"),
        ("::/0", "https://10.0.0.1/"),
        ("localhost", "http://127.0.0.1/"),
    ],
)
def test_any_other_host_is_reached_through_it(no_proxy: str, url: str) -> None:
    assert through(url, no_proxy)


@pytest.mark.parametrize(
    ("no_proxy", "named"),
    [
        ("crm.example, http://a.example", "http://a.example"),
        ("crm.example:70000", "crm.example:70000"),
        ("crm.example:", "crm.example:"),
        ("10.0.0.0/33", "10.0.0.0/33"),
        ("a..example", "a..example"),
        ("[crm.example]", "[crm.example]"),
        ("crm.*", "crm.*"),
        ("**", "**"),
        ("münchen.example", "münchen.example"),
    ],
)
def test_an_exception_that_means_nothing_is_named(no_proxy: str, named: str) -> None:
    assert str(fault_of_exceptions(no_proxy)).endswith(f", found {named}")


@pytest.mark.parametrize(
    "url",
    [
        "direct",
        "http://proxy.example:3128",
        "http://proxy.example:3128/",
        "http://proxy.example",
        "http://10.0.0.1:3128",
        "http://[::1]:3128",
        "http://user:p%40ss%20word@proxy.example:3128",
    ],
)
def test_a_url_of_a_proxy_is_taken(url: str) -> None:
    assert fault_of_url(Secret(url)) is None


@pytest.mark.parametrize(
    "url",
    [
        "proxy.example:3128",
        "https://marked.example:3128",
        "socks5://marked.example:1080",
        "http://",
        "http://:3128",
        "http://marked.example:0",
        "http://marked.example:70000",
        "http://marked.example:3128/path",
        "http://marked.example:3128/?query",
        "http://marked.example:3128/#fragment",
        "http://marked example",
        "http://[marked",
        "http://user:m%C3%A4rked@proxy.example",
        "http://user:%0Amarked@proxy.example",
        "http://user:%FFmarked@proxy.example",
        "DIRECT",
    ],
)
def test_any_other_value_is_refused_and_not_repeated(url: str) -> None:
    fault = fault_of_url(Secret(url))
    assert fault is not None
    assert fault.startswith('expected http:// and a host, as in "http://proxy.example:3128", or')
    assert "marked" not in fault


def test_without_settings_nothing_goes_through_a_proxy() -> None:
    environ = {"HTTPS_PROXY": OTHER, "HTTP_PROXY": OTHER}
    assert Proxies.of(OutboundSettings(), environ=environ).url_for("https://crm.example/") is None


def test_the_own_proxy_of_a_sink_replaces_the_general_one() -> None:
    outbound = OutboundSettings(proxy_url=Secret(PROXY), no_proxy="10.0.0.0/8")
    own = Proxies.of(outbound, Secret(OTHER), environ={})
    assert own.url_for("https://crm.example/") == OTHER
    assert own.url_for("https://10.0.0.1/") is None


@pytest.mark.parametrize("outbound", ["url", "environment"])
def test_direct_means_no_proxy(outbound: str) -> None:
    general = (
        OutboundSettings(proxy_url=Secret(PROXY))
        if outbound == "url"
        else OutboundSettings(proxy_from_environment=True)
    )
    way = Proxies.of(general, Secret("direct"), environ={"https_proxy": OTHER})
    assert way.url_for("https://crm.example/") is None


def test_the_own_proxy_of_a_sink_goes_before_the_environment() -> None:
    outbound = OutboundSettings(proxy_from_environment=True)
    way = Proxies.of(outbound, Secret(PROXY), environ={"https_proxy": OTHER, "no_proxy": "*"})
    assert way.url_for("https://crm.example/") == PROXY


FROM_ENVIRONMENT = OutboundSettings(proxy_from_environment=True)


@pytest.mark.parametrize(
    ("environ", "url", "proxy"),
    [
        ({"HTTPS_PROXY": OTHER}, "https://crm.example/", OTHER),
        ({"HTTPS_PROXY": OTHER}, "http://crm.example/", None),
        ({"HTTP_PROXY": OTHER}, "http://crm.example/", OTHER),
        ({"HTTP_PROXY": OTHER}, "https://crm.example/", None),
        ({"https_proxy": PROXY, "HTTPS_PROXY": OTHER}, "https://crm.example/", PROXY),
        ({"https_proxy": "", "HTTPS_PROXY": OTHER}, "https://crm.example/", OTHER),
        ({"HTTPS_PROXY": "proxy:3128"}, "https://crm.example/", "http://proxy:3128"),
        ({"HTTPS_PROXY": OTHER, "NO_PROXY": "crm.example"}, "https://crm.example/", None),
        ({"HTTPS_PROXY": OTHER, "no_proxy": ".example,?!"}, "https://crm.example/", None),
        ({"HTTPS_PROXY": OTHER, "NO_PROXY": "?!"}, "https://crm.example/", OTHER),
        ({"ALL_PROXY": OTHER}, "https://crm.example/", None),
        ({}, "https://crm.example/", None),
    ],
)
def test_the_environment_is_read_as_other_programs_read_it(
    environ: dict[str, str], url: str, proxy: str | None
) -> None:
    assert Proxies.of(FROM_ENVIRONMENT, environ=environ).url_for(url) == proxy


def test_variables_that_hold_no_usable_proxy_are_named() -> None:
    environ = {"HTTP_PROXY": "socks5://marked:1080", "HTTPS_PROXY": "proxy:3128"}
    assert named_in(environ) == ["HTTP_PROXY", "HTTPS_PROXY"]
    assert unusable(environ) == ["HTTP_PROXY"]


def test_credentials_do_not_print() -> None:
    outbound = OutboundSettings(proxy_url=Secret(PROXY))
    assert "marked" not in repr(outbound)
    assert "marked" not in repr(Proxies.of(outbound, environ={}))


def test_a_table_of_requests_has_the_settings_and_no_other_has() -> None:
    assert is_proxied(ProxiedSettings)
    assert not is_proxied(SinkSettings)
