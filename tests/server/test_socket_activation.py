"""Sockets that were handed over: which are taken for what, and what is said of those of no use."""

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from relay.core.config_values import Address
from relay.core.errors import SocketRefused
from relay.server import socket_activation
from relay.server.listener import BACKLOG, Listener, bind
from relay.server.socket_activation import Side
from tests.server.test_listener import GRACE, LIMIT, client_address, get

PID = 4711
OTHER = Address("[::1]:9")


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def handed_over(given: socket.socket, name: str | None = None) -> dict[str, str]:
    """What systemd would set; `take` closes a descriptor of its own."""
    names = {} if name is None else {"LISTEN_FDNAMES": name}
    return {"LISTEN_PID": str(PID), "LISTEN_FDS": "1", **names, "HOME": "/"}


def take(environ: dict[str, str], given: socket.socket) -> dict[Side, socket.socket]:
    return socket_activation.take(environ, pid=PID, first=os.dup(given.fileno()))


@pytest.mark.parametrize(
    ("names", "count", "sides"),
    [
        ([], 0, []),
        ([], 1, ["public"]),
        (["unknown"], 1, ["public"]),
        (["relay.socket"], 1, ["public"]),
        (["public"], 1, ["public"]),
        (["admin"], 1, ["admin"]),
        (["public", "admin"], 2, ["public", "admin"]),
        (["admin", "public"], 2, ["admin", "public"]),
    ],
)
def test_a_name_says_which_side_a_socket_is_for(
    names: list[str], count: int, sides: list[Side]
) -> None:
    assert socket_activation.assign(names, count) == sides


@pytest.mark.parametrize(
    ("names", "count", "found"),
    [
        ([], 2, "2 without names"),
        (["relay.socket", "relay.socket"], 2, "'relay.socket', 'relay.socket'"),
        (["public", "public"], 2, "'public', 'public'"),
        (["public", "metrics"], 2, "'public', 'metrics'"),
        (["public"], 2, "'public'"),
        (["public", "admin", "other"], 3, "'other'"),
        (["public", "admin", "public"], 3, "'public'"),
    ],
)
def test_sockets_that_cannot_be_told_apart_are_refused(
    names: list[str], count: int, found: str
) -> None:
    with pytest.raises(SocketRefused, match=f"FileDescriptorName= .* found .*{found}"):
        socket_activation.assign(names, count)


def test_the_variables_are_gone_once_they_were_read(opened: ExitStack) -> None:
    given = opened.enter_context(bind(Address("127.0.0.1:0")))
    environ = handed_over(given)
    taken = take(environ, given)
    opened.enter_context(taken["public"])
    assert environ == {"HOME": "/"}
    assert list(taken) == ["public"]
    assert taken["public"].getsockname() == given.getsockname()


@pytest.mark.parametrize(
    "environ",
    [
        {"LISTEN_PID": "1", "LISTEN_FDS": "1"},
        {"LISTEN_PID": "", "LISTEN_FDS": "1"},
        {"LISTEN_FDS": "1", "LISTEN_FDNAMES": "public"},
        {"LISTEN_PID": str(PID), "LISTEN_FDS": "0"},
        {"LISTEN_PID": str(PID), "LISTEN_FDS": "0", "LISTEN_FDNAMES": ""},
        {"LISTEN_PID": str(PID), "LISTEN_FDNAMES": "public"},
        {},
    ],
)
def test_sockets_for_another_process_are_left_alone(environ: dict[str, str]) -> None:
    assert socket_activation.take(environ, pid=PID, first=1 << 20) == {}
    assert environ == {}


def test_a_child_process_inherits_none_of_it(opened: ExitStack) -> None:
    given = opened.enter_context(bind(Address("127.0.0.1:0")))
    descriptor = os.dup(given.fileno())
    os.set_inheritable(descriptor, True)  # noqa: FBT003  it takes no name
    taken = socket_activation.take(handed_over(given), pid=PID, first=descriptor)
    assert not opened.enter_context(taken["public"]).get_inheritable()


@pytest.mark.parametrize("count", ["one", "-1", "٣", "1.0"])
def test_a_number_that_cannot_be_parsed_is_refused(count: str) -> None:
    with pytest.raises(SocketRefused, match="LISTEN_FDS is expected to be a number"):
        socket_activation.take({"LISTEN_PID": str(PID), "LISTEN_FDS": count}, pid=PID)


def test_a_connection_in_place_of_a_listening_socket_is_refused(opened: ExitStack) -> None:
    listening = opened.enter_context(bind(Address("127.0.0.1:0")))
    connection = opened.enter_context(socket.create_connection(listening.getsockname()))
    with pytest.raises(SocketRefused, match="must not have Accept=yes"):
        take(handed_over(connection), connection)


@pytest.mark.parametrize(
    "kind", [(socket.AF_UNIX, socket.SOCK_STREAM), (socket.AF_INET, socket.SOCK_DGRAM)]
)
def test_a_socket_other_than_tcp_is_refused(
    opened: ExitStack, kind: tuple[socket.AddressFamily, socket.SocketKind]
) -> None:
    given = opened.enter_context(socket.socket(*kind))
    with pytest.raises(SocketRefused, match=r"ListenStream= .* an address with a port"):
        take(handed_over(given), given)


def test_a_file_descriptor_that_is_not_a_socket_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file:
        environ = {"LISTEN_PID": str(PID), "LISTEN_FDS": "1"}
        with pytest.raises(SocketRefused, match="for the public side: Socket operation on non"):
            socket_activation.take(environ, pid=PID, first=file.fileno())


def test_a_missing_file_descriptor_is_refused() -> None:
    environ = {"LISTEN_PID": str(PID), "LISTEN_FDS": "1", "LISTEN_FDNAMES": "admin"}
    with pytest.raises(SocketRefused, match=r"1048576, for the admin side: Bad file descriptor"):
        socket_activation.take(environ, pid=PID, first=1 << 20)


async def test_it_is_served_in_place_of_the_address_and_lives_on(opened: ExitStack) -> None:
    kept = opened.enter_context(bind(Address("127.0.0.1:0")))
    for _ in range(3):
        given = opened.enter_context(kept.dup())
        given.settimeout(0)
        listener = Listener(client_address, OTHER, grace=GRACE, limit=LIMIT, handed_over=given)
        await listener.start()
        host, port = kept.getsockname()
        assert listener.url == f"http://{host}:{port}"
        assert (await get(listener)).endswith(b"127.0.0.1")
        await listener.retire()
        await listener.stop()
        # Nobody accepts, and yet nobody is turned away.
        opened.enter_context(socket.create_connection((host, port)))


@pytest.mark.parametrize("backlog", [16, 128])
async def test_the_length_of_its_queue_stays_as_it_was_set(backlog: int) -> None:
    with socket.socket() as kept:
        kept.bind(("127.0.0.1", 0))
        kept.listen(backlog)
        listener = Listener(client_address, OTHER, grace=GRACE, limit=LIMIT, handed_over=kept.dup())
        await listener.start()
        await listener.stop()
        assert backlog < BACKLOG
        waiting = [socket.socket() for _ in range(backlog * 2)]
        try:
            assert _connected(waiting, kept.getsockname()) == backlog + 1
        finally:
            for each in waiting:
                each.close()


def _connected(callers: list[socket.socket], address: tuple[str, int]) -> int:
    """How many the kernel lets in at once, one after the other; it takes one more than it says."""
    for number, caller in enumerate(callers):
        caller.settimeout(0.2)
        try:
            caller.connect(address)
        except TimeoutError:
            return number
    return len(callers)
