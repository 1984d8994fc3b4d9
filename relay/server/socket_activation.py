"""Socket activation: listening sockets that systemd opened and keeps open.

While no relay runs, connections wait in such a socket's queue.
The protocol is sd_listen_fds(3), and needs no library.
"""

import os
import socket
from collections.abc import MutableMapping, Sequence
from contextlib import ExitStack
from typing import Literal, get_args

from relay.core.errors import SocketRefused

Side = Literal["public", "admin"]

FIRST = 3
"""Descriptor of the first socket, as sd_listen_fds(3) defines it; the others follow."""

_SIDES: tuple[Side, ...] = get_args(Side)
_TCP = (socket.AF_INET, socket.AF_INET6)


def take(
    environ: MutableMapping[str, str], *, pid: int, first: int = FIRST
) -> dict[Side, socket.socket]:
    """Adopt the sockets handed over to the process `pid`, if any.

    The variables are removed from `environ` in any case: a child that inherited them would take our
    descriptors for its own.
    Raises SocketRefused.
    """
    meant_for, count, names = (
        environ.pop(name, None) for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")
    )
    if not count or meant_for != str(pid):
        return {}
    if not count.isascii() or not count.isdigit():
        raise SocketRefused(f"LISTEN_FDS is expected to be a number, found {count!r}")
    sides = assign(names.split(":") if names else [], int(count))
    with ExitStack() as adopted:
        sockets = {
            side: adopted.enter_context(_adopt(first + offset, side))
            for offset, side in enumerate(sides)
        }
        adopted.pop_all()
    return sockets


def assign(names: Sequence[str], count: int) -> list[Side]:
    """Return the side that each of `count` sockets is for.

    A single one is the public side's unless its name says otherwise: systemd names an unnamed one
    after its unit.
    Raises SocketRefused.
    """
    if count == 1 and (not names or names[0] not in _SIDES):
        return ["public"]
    sides = [side for name in names for side in _SIDES if side == name]
    if not len(names) == len(set(sides)) == count:
        present = ", ".join(map(repr, names)) if names else f"{count} without names"
        raise SocketRefused(
            "expected one named 'public', one named 'admin', or both "
            f"(FileDescriptorName= in the socket unit), found {present}"
        )
    return sides


def _adopt(fd: int, side: Side) -> socket.socket:
    try:
        os.set_inheritable(fd, False)  # noqa: FBT003  it takes no name
        adopted = socket.socket(fileno=fd)
    except OSError as error:
        cause = os.strerror(error.errno or 0)
        raise SocketRefused(f"descriptor {fd}, for the {side} side: {cause}") from error
    try:
        _require_usable(adopted, side)
    except SocketRefused:
        adopted.close()
        raise
    adopted.settimeout(0)
    return adopted


def _require_usable(adopted: socket.socket, side: Side) -> None:
    if adopted.family not in _TCP or adopted.type != socket.SOCK_STREAM:
        raise SocketRefused(
            f"the one for the {side} side is not a TCP socket: "
            "ListenStream= in the socket unit has to be an address with a port"
        )
    if not adopted.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        raise SocketRefused(
            f"the one for the {side} side does not listen: the socket unit must not have Accept=yes"
        )
