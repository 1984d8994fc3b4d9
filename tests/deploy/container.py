"""A container of an image, with the restrictions of deploy/compose, and without an engine.

Its own processes and mounts, a read-only root, no privilege; only the network is this machine's,
unless another one is made for it.
"""

import shlex
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.deploy.image import Image

PATIENCE_S = 60.0
"""Long, because the machine may be busy."""


class Container:
    """One run of an image; its output is in `log`."""

    def __init__(
        self,
        image: Image,
        *command: str,
        volumes: Mapping[str, Path],
        files: Mapping[str, Path],
        log: Path,
        host: Sequence[str] = (),
    ) -> None:
        """`volumes` can be written to, `files` cannot; `command` stands in for the image's own.

        `host` goes before a command that shall run on another host (network.py).
        """
        self._host = host
        self._image = image
        self._command = command or tuple(image.config["Cmd"])
        self._volumes = volumes
        self._files = files
        self.log = log

    def __enter__(self) -> Self:
        # The root is bound upon itself, so that it can become read-only.
        inside = [
            f"mount --bind {self._root} {self._root}",
            f"mount -t proc proc {self._at('/proc')}",
        ]
        inside.append(f"mount -t tmpfs -o nosuid,nodev,noexec,mode=1777 tmpfs {self._at('/tmp')}")  # noqa: S108
        for target, source in {**self._volumes, **self._files}.items():
            make = "mkdir -p" if source.is_dir() else "install -D /dev/null"
            inside += [f"{make} {self._at(target)}", f"mount --bind {source} {self._at(target)}"]
        inside += [f"mount -o remount,bind,ro {self._at(target)}" for target in self._files]
        inside.append(f"mount -o remount,bind,ro {self._root}")
        inside.append(f"exec chroot {self._root} {self._started(*self._entry, *self._command)}")
        apart = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [*self._host, *apart, "sh", "-euc", "\n".join(inside)], stdout=log, stderr=log
            )
        while not self._children() and self.running:
            time.sleep(0.01)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait(PATIENCE_S)

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """The PID of its process 1 on the host."""
        (child,) = self._children()
        return int(child)

    def _children(self) -> list[str]:
        number = self._process.pid
        return Path(f"/proc/{number}/task/{number}/children").read_text().split()

    def execute(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command beside PID 1, as a health check does."""
        enter = f"nsenter --target {self.pid} --mount --net --pid --root {self._started(*command)}"
        return subprocess.run(
            shlex.split(enter), capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )

    def stop(self) -> int:
        """Send the image's stop signal to PID 1, and return the exit code."""
        number = signal.Signals[self._image.config["StopSignal"]]
        subprocess.run(["kill", f"-{number.value}", str(self.pid)], check=True)
        return self._process.wait(PATIENCE_S)

    @property
    def _root(self) -> str:
        return shlex.quote(str(self._image.root))

    @property
    def _entry(self) -> list[str]:
        entry: list[str] = self._image.config["Entrypoint"]
        return entry

    def _at(self, target: str) -> str:
        return self._root + target

    def _started(self, *command: str) -> str:
        """With the image's environment, folder and user, and nothing that could become more."""
        config = self._image.config
        user, _, group = config["User"].partition(":")
        alone = ["env", "--ignore-environment", f"--chdir={config['WorkingDir']}", *config["Env"]]
        weak = ["setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups"]
        weaker = ["--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]
        return shlex.join([*alone, *weak, *weaker, *command])
