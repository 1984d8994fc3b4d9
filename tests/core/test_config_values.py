"""Config values have one form each, and secrets are resolved from their references."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from relay.core.config_values import (
    Address,
    Duration,
    Network,
    Rate,
    Secret,
    SecretTemplate,
    Size,
    decode,
)


@pytest.mark.parametrize(
    ("text", "ms"),
    [("250ms", 250), ("5s", 5_000), ("10m", 600_000), ("2h", 7_200_000), ("30d", 2_592_000_000)],
)
def test_a_duration_is_milliseconds(text: str, ms: int) -> None:
    assert Duration.parse(text) == ms
    assert Duration.parse(text).seconds == ms / 1000


def test_a_size_is_bytes() -> None:
    assert [Size.parse(text) for text in ("7B", "512KiB", "1MiB", "2GiB")] == [
        7,
        524_288,
        1_048_576,
        2_147_483_648,
    ]


def test_a_rate_is_events_per_second() -> None:
    assert [Rate.parse(text) for text in ("2/s", "30/m", "36/h")] == [2.0, 0.5, 0.01]


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        *(
            (Duration.parse, text)
            for text in ("", "5", "5 s", "-5s", "1.5s", "5S", "5s\n", "\u0665s")
        ),
        *((Size.parse, text) for text in ("", "1", "1MB", "1mib", "1 MiB", "-1B")),
        *((Rate.parse, text) for text in ("", "0/s", "1", "1/d", "1.5/s", "/s")),
        *(
            (Address.parse, text)
            for text in ("", "8080", ":8080", "::1:80", "[::1]", "[1.2.3.4]:1", "1.2.3:1")
        ),
        *((Address.parse, text) for text in ("host:65536", "host:-1", "a b:80", "host:80\n")),
        *((Network.parse, text) for text in ("", "localhost", "10.0.0.1/8", "1.2.3.4:80", "*")),
    ],
)
def test_another_form_is_refused_with_the_expected_one(
    parse: Callable[[str], object], text: str
) -> None:
    with pytest.raises(ValueError, match=r"^expected "):
        parse(text)


@pytest.mark.parametrize(
    ("text", "host", "port", "is_loopback", "is_wildcard"),
    [
        ("127.0.0.1:8080", "127.0.0.1", 8080, True, False),
        ("localhost:0", "localhost", 0, True, False),
        ("[::1]:65535", "::1", 65535, True, False),
        ("0.0.0.0:80", "0.0.0.0", 80, False, True),
        ("[::]:80", "::", 80, False, True),
        ("relay_1.internal:80", "relay_1.internal", 80, False, False),
    ],
)
def test_an_address_knows_its_parts(
    text: str, host: str, port: int, *, is_loopback: bool, is_wildcard: bool
) -> None:
    address = Address.parse(text)
    assert (address, address.host, address.port) == (text, host, port)
    assert (address.is_loopback, address.is_wildcard) == (is_loopback, is_wildcard)


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("0.0.0.0:8080", "http://127.0.0.1:8080"),
        ("[::]:8080", "http://[::1]:8080"),
        ("[fd00::1]:8080", "http://[fd00::1]:8080"),
        ("relay.example:8080", "http://relay.example:8080"),
    ],
)
def test_the_url_of_a_wildcard_names_the_loopback_address(address: str, url: str) -> None:
    assert Address.parse(address).url() == url


def test_a_url_may_have_another_port_than_its_address() -> None:
    assert Address("127.0.0.1:0").url(8080) == "http://127.0.0.1:8080"


@pytest.mark.parametrize(
    ("bound", "address"),
    [(("127.0.0.1", 8080), "127.0.0.1:8080"), (("::1", 8080, 0, 0), "[::1]:8080")],
)
def test_a_sockets_name_is_written_as_an_address(bound: tuple[object, ...], address: str) -> None:
    assert Address.of(bound) == address


def test_networks_of_both_families_are_accepted() -> None:
    texts = ("127.0.0.1", "::1", "10.0.0.0/8", "fd00::/8")
    assert tuple(Network.parse(text) for text in texts) == texts


@pytest.mark.parametrize("text", ["https://u:p@host/x", "plain", "environment:x", "ENV:X", " x "])
def test_a_text_without_a_known_scheme_is_the_secret_itself(text: str) -> None:
    assert Secret.resolve(text, {}).reveal() == text


def test_the_value_of_an_environment_variable_is_unchanged() -> None:
    assert Secret.resolve("env:X", {"X": "env:Y\n"}).reveal() == "env:Y\n"


@pytest.mark.parametrize(
    ("content", "secret"),
    [
        (b"x", "x"),
        (b"x\n", "x"),
        (b"x\r\n", "x"),
        (b"x\n\n", "x\n"),
        (b"x\r", "x\r"),
        (b" x \n", " x "),
        (b"a\r\nb\n", "a\r\nb"),
        (b"\xef\xbb\xbfx\n", "x"),
        ("schlüssel\n".encode(), "schlüssel"),
    ],
)
def test_one_trailing_newline_of_a_file_is_dropped(
    tmp_path: Path, content: bytes, secret: str
) -> None:
    path = tmp_path / "secret"
    path.write_bytes(content)
    assert Secret.resolve(f"file:{path}", {}).reveal() == secret


@pytest.mark.parametrize(
    ("text", "environ", "complaint"),
    [
        ("", {}, "the value is empty"),
        (" \t\n", {}, "the value is empty"),
        ("env:X", {}, "the environment variable X is not set"),
        ("env:X", {"X": ""}, "the environment variable X is empty"),
        ("env:X", {"X": " \n"}, "the environment variable X is empty"),
        ("env:X", {"X": "a\udcff"}, "the environment variable X is not UTF-8 text"),
        ("env:", {"": "x"}, 'expected the name of an environment variable after "env:"'),
        ("file:", {}, 'expected a path after "file:"'),
        ("file:/dev/null", {}, "the file /dev/null is empty"),
        ("file:/dev/zero", {}, "the file /dev/zero cannot be read: larger than 1 MiB"),
        ("file:/", {}, "the file / cannot be read: Is a directory"),
        ("file:/no/such", {}, "the file /no/such cannot be read: No such file or directory"),
    ],
)
def test_an_unresolvable_reference_is_named_in_the_error(
    text: str, environ: dict[str, str], complaint: str
) -> None:
    with pytest.raises(ValueError, match=r".+") as caught:
        Secret.resolve(text, environ)
    assert str(caught.value) == complaint


@pytest.mark.parametrize(
    ("content", "complaint"),
    [(b"\n", "is empty"), (b"good line\n\xff\n", "cannot be read: not UTF-8 text (line 2)")],
)
def test_an_unusable_file_is_named_in_the_error(
    tmp_path: Path, content: bytes, complaint: str
) -> None:
    path = tmp_path / "secret"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r".+") as caught:
        Secret.resolve(f"file:{path}", {})
    assert str(caught.value) == f"the file {path} {complaint}"


def test_a_secret_does_not_print() -> None:
    secret = Secret("hidden")
    assert [repr(secret), str(secret), f"{secret}", f"{[secret]}"] == ["***", "***", "***", "[***]"]
    assert not hasattr(secret, "__dict__")


def test_secrets_are_equal_by_value() -> None:
    assert Secret("a") == Secret("a") != Secret("b")
    assert len({Secret("a"), Secret("a")}) == 1
    assert Secret("a") != "a"


def test_a_template_differs_from_the_same_text_behind_a_reference() -> None:
    written = SecretTemplate.resolve("{{ id }}", {})
    referred = SecretTemplate.resolve("env:ID", {"ID": "{{ id }}"})
    assert written.reveal() == referred.reveal()
    assert written == SecretTemplate("{{ id }}") != referred
    assert len({written, SecretTemplate("{{ id }}")}) == 1


@pytest.mark.parametrize("kind", [Duration, Size, Rate, Secret, Address, Network])
@pytest.mark.parametrize("value", [5, 1.5, True, [], {}, None])
def test_a_value_of_another_type_is_refused(kind: type[Any], value: object) -> None:
    with pytest.raises(ValueError, match=r"^expected "):
        decode(kind, value, {})


def test_an_unknown_setting_type_is_refused() -> None:
    with pytest.raises(ValueError, match="no such setting type: Path"):
        decode(Path, "x", {})
