"""Two hosts with a cable between them, as containers of one network have it."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

_ALONE = "ip link set lo up && echo up && exec sleep infinity"


def inside(number: int) -> list[str]:
    """Prefix of a command that runs on a host."""
    return ["nsenter", f"--net=/proc/{number}/ns/net"]


@contextmanager
def cable(first: str, second: str) -> Iterator[tuple[list[str], list[str]]]:
    """Connect two hosts with addresses such as 172.30.94.2/29; yield the command prefix of each."""
    if shutil.which("ip") is None:
        pytest.skip("ip is not installed")
    with ExitStack() as stack:
        one, other = (stack.enter_context(_host()) for _ in range(2))
        peers = ["type", "veth", "peer", "name", "eth0", "netns", str(other)]
        _run("ip", "link", "add", "name", "eth0", "netns", str(one), *peers)
        for number, address in ((one, first), (other, second)):
            _run(*inside(number), "ip", "address", "add", address, "dev", "eth0")
            _run(*inside(number), "ip", "link", "set", "eth0", "up")
        yield inside(one), inside(other)


@contextmanager
def _host() -> Iterator[int]:
    process = subprocess.Popen(["unshare", "--net", "sh", "-c", _ALONE], stdout=subprocess.PIPE)
    try:
        assert process.stdout
        assert process.stdout.readline() == b"up\n"
        yield process.pid
    finally:
        process.kill()
        process.communicate()


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
