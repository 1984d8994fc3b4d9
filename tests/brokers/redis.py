"""A real redis-server that keeps what it confirmed, and a consumer that reads all of a stream."""

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import redis

from tests.brokers.program import Program

STREAM = "relay"
PASSWORD = "marked:p%ss/word"


class RedisServer(Program):
    """`url` logs in as the user `relay`, whose rights can be changed."""

    name = "redis-server"

    def __init__(self, folder: Path, *, more: str = "") -> None:
        super().__init__(folder)
        self.url = f"redis://relay:{quote(PASSWORD, safe='')}@127.0.0.1:{self.port}/0"
        (folder / "users.acl").write_text(
            f"user default on >admin ~* &* +@all\n{user(PASSWORD, '+@all')}\n"
        )
        self._configure(more)

    def command(self) -> list[str]:
        return [self.name, str(self.folder / "redis.conf")]

    def start(self) -> None:
        super().start()
        with closing(self.admin()) as admin:  # it listens before it has read its file
            admin.ping()

    def restart_with(self, more: str) -> None:
        """Start again with more lines in its config."""
        self.kill()
        self._configure(more)
        self.start()

    def _configure(self, more: str) -> None:
        folder = self.folder
        (folder / "redis.conf").write_text(
            f"bind 127.0.0.1\nport {self.port}\ndir {folder}\naclfile {folder}/users.acl\n"
            f"save ''\nappendonly yes\nappendfsync always\nenable-debug-command local\n{more}\n"
        )

    def admin(self) -> Any:  # half of the library has no types
        retry = redis.retry.Retry(redis.backoff.ConstantBackoff(0.05), 200)
        return redis.Redis(
            port=self.port,
            password="admin",
            retry=retry,
            retry_on_error=[redis.exceptions.BusyLoadingError],
        )

    def set_user(self, *, password: str = PASSWORD, rights: str = "+@all") -> None:
        """Change the user `relay`, and end its connections."""
        with closing(self.admin()) as admin:
            admin.execute_command("ACL", "SETUSER", *user(password, rights).split()[1:])
            admin.execute_command("CLIENT", "KILL", "USER", "relay")

    def configure(self, **values: str | int) -> None:
        with closing(self.admin()) as admin:
            for name, value in values.items():
                admin.config_set(name.replace("_", "-"), value)

    def read(self, stream: str = STREAM) -> list[Mapping[bytes, bytes]]:
        """Read the stream from its first entry to its last."""
        with closing(self.admin()) as admin:
            return [fields for _, fields in admin.xrange(stream)]

    def connections(self) -> int:
        with closing(self.admin()) as admin:
            return len([each for each in admin.client_list() if each["user"] == "relay"])

    def accepted(self) -> int:
        """Count the connections that there have been, this one too."""
        with closing(self.admin()) as admin:
            return int(admin.info("stats")["total_connections_received"])


def user(password: str, rights: str) -> str:
    """Write an ACL rule without white space in its words."""
    return f"user relay reset on >{password} ~* &* {rights}"
