"""A real systemd, as the first process of namespaces of its own: units run as on a host.

It sees this machine's files, with layers over /etc, /opt, /tmp and /var that go with it, and this
machine's network. It knows no other units than those that it is given.
"""

import asyncio
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.guarantees.process import until

PROGRAM = Path("/lib/systemd/systemd")

# A cgroup of its own first, so that what systemd makes of its root is a corner of this machine's.
_OUTSIDE = """
set -eu
mkdir -p "$FOLDER/cgroups"
mount --make-rprivate /
mount -t cgroup2 cgroup2 "$FOLDER/cgroups"
own="$FOLDER/cgroups/relay-test-$$"
mkdir "$own"
echo $$ > "$own/cgroup.procs"
unshare $SPACES --fork --kill-child sh "$FOLDER/inside.sh" || true
echo $$ > "$FOLDER/cgroups/cgroup.procs"
find "$own" -depth -type d -exec rmdir {} \\;
"""

_INSIDE = """
set -eu
mount --make-rshared /
mount -t proc proc /proc
umount -R /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
# The layers are in it, and a relay wants room.
mount -t tmpfs -o mode=0755,size=1g tmpfs /run
mkdir /run/folder
mount --bind "$FOLDER" /run/folder
for each in etc opt tmp var; do
    mkdir -p "/run/over/$each/upper" "/run/over/$each/work"
    layers="lowerdir=/$each,upperdir=/run/over/$each/upper,workdir=/run/over/$each/work"
    mount -t overlay -o "$layers" overlay "/$each"
done
chmod 1777 /tmp
mount --bind /run/folder "$FOLDER"
. "$FOLDER/install.sh"
rm -rf /etc/systemd/system
mkdir /etc/systemd/system
export container=relay-test SYSTEMD_UNIT_PATH="/etc/systemd/system:$FOLDER/units"
exec /lib/systemd/systemd --system --unit=test.target --log-target=null --show-status=no
"""

_SPACES = ("mount", "pid", "ipc", "uts", "cgroup")

_TARGETS = (
    *("basic", "multi-user", "network-online", "shutdown", "sockets", "sysinit", "test", "umount"),
)


class NotHere(Exception):
    """Running systemd is not permitted on this machine; says nothing about the tested units."""


class ServiceManager:
    """Add units with `unit`, then `start` it; `run` runs a command beside it."""

    def __init__(self, folder: Path, *, install: str = "", apart: Sequence[str] = ()) -> None:
        """`install` is a piece of shell that lays out files for the units, in the layers.

        `apart` are more kinds of namespaces: with "net", the machine's network is not seen either.
        """
        self._spaces = [f"--{kind}" for kind in (*_SPACES, *apart)]
        self._folder = folder
        self.units = folder / "units"
        self.units.mkdir(parents=True)
        for name in _TARGETS:
            self.unit(f"{name}.target", "[Unit]\nDefaultDependencies=no\n")
        (folder / "inside.sh").write_text(_INSIDE)
        (folder / "install.sh").write_text(install)
        self._process: asyncio.subprocess.Process | None = None
        self._pid = 0

    def unit(self, name: str, text: str) -> None:
        path = self.units / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    async def start(self) -> None:
        """Start it and wait until it responds; raises NotHere with its output if it cannot run."""
        self._process = await asyncio.create_subprocess_exec(
            *("unshare", "--mount", "sh", "-c", _OUTSIDE),
            env={**os.environ, "FOLDER": str(self._folder), "SPACES": " ".join(self._spaces)},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        await until(self._answers, what="an answer of systemd")

    async def stop(self) -> None:
        """Stop it with everything that it started."""
        if self._process is None:
            return
        if self._process.returncode is None and self._pid:
            os.kill(self._pid, signal.SIGKILL)
        await self._process.communicate()

    def run(
        self, *command: str, check: bool = True, stdin: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run a command where the units are; its files, its processes."""
        done = subprocess.run(
            ["nsenter", f"--target={self._pid}", *self._spaces, "--", *command],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=90,
        )
        if check and done.returncode:
            raise AssertionError(f"{command}: {done.stdout}{done.stderr}\n{self.told()}")
        return done

    def shows(self, unit: str, *names: str) -> Mapping[str, str]:
        """Properties of a unit, as `systemctl show` has them."""
        text = self.run("systemctl", "show", f"--property={','.join(names)}", unit).stdout
        return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)

    def told(self) -> str:
        """Output of the units that write to `output`."""
        output = self._folder / "output"
        return output.read_text(errors="replace")[-4000:] if output.exists() else ""

    async def _answers(self) -> bool:
        assert self._process is not None
        if self._process.returncode is not None:
            said, _ = await self._process.communicate()
            raise NotHere(said.decode().strip())
        self._pid = self._pid or _grandchild(self._process.pid)
        if not self._pid:
            return False
        return self.run("systemctl", "is-active", "test.target", check=False).returncode == 0


async def why_not(folder: Path) -> str:
    """The reason why this machine cannot run systemd with a unit; empty if it can."""
    if os.geteuid() != 0:
        return "only root can make the namespaces that a systemd needs"
    manager = ServiceManager(folder)
    manager.unit("probe.service", "[Service]\nType=oneshot\nDynamicUser=yes\nExecStart=true\n")
    try:
        await manager.start()
        done = manager.run("systemctl", "start", "probe.service", check=False)
    except (NotHere, AssertionError) as error:
        return f"no systemd can be run here: {error}"
    finally:
        await manager.stop()
    return f"a systemd starts no unit here: {done.stderr}" if done.returncode else ""


def _grandchild(pid: int) -> int:
    """The process that `unshare --fork` has started, by its number out here; 0 if it is not yet."""
    for _ in range(2):
        try:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except OSError:
            return 0
        if not children:
            return 0
        pid = int(children[-1])
    return pid
