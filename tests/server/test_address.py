"""Addresses to listen on: how they are read, and how they are told."""

import pytest

from relay.server import address as endpoint


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("127.0.0.1:8080", ("127.0.0.1", 8080)),
        ("[::1]:8080", ("::1", 8080)),
        ("localhost:0", ("localhost", 0)),
        (":8080", ("", 8080)),
    ],
)
def test_an_address_is_read(address: str, parts: tuple[str, int]) -> None:
    assert endpoint.parts(address) == parts


@pytest.mark.parametrize("address", ["", "8080", "host:", "host:http", "::1:80", "h:65536", "h:-1"])
def test_a_wrong_address_is_told_by_example(address: str) -> None:
    with pytest.raises(ValueError, match=r"\[::1\]:8080"):
        endpoint.parts(address)


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("127.0.0.1:8080", "http://127.0.0.1:8080"),
        (":8080", "http://127.0.0.1:8080"),
        ("0.0.0.0:8080", "http://127.0.0.1:8080"),
        ("[::]:8080", "http://[::1]:8080"),
        ("[fd00::1]:8080", "http://[fd00::1]:8080"),
        ("relay.example:8080", "http://relay.example:8080"),
    ],
)
def test_a_wildcard_is_reached_by_loopback(address: str, url: str) -> None:
    assert endpoint.url(address) == url


def test_another_port_may_stand_in_for_the_one_of_the_address() -> None:
    assert endpoint.url("127.0.0.1:0", 8080) == "http://127.0.0.1:8080"


@pytest.mark.parametrize(
    ("bound", "name"),
    [(("127.0.0.1", 8080), "127.0.0.1:8080"), (("::1", 8080, 0, 0), "[::1]:8080")],
)
def test_what_a_socket_says_of_itself_is_written_as_an_address(
    bound: tuple[object, ...], name: str
) -> None:
    assert endpoint.name(bound) == name
