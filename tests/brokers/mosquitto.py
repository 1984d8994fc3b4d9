"""A real mosquitto that keeps its sessions, and a subscriber that hears all of it."""

import re
import signal
import subprocess
import time
from pathlib import Path
from threading import Condition

from paho.mqtt.client import MQTTMessage

from tests.brokers.mqtt_link import DEADLINE_S, Link, Subscriber
from tests.brokers.program import Program

PASSWORD = "marked:p%ss/word"

CONFIG = """
user root
listener {port} 127.0.0.1
allow_anonymous false
password_file {folder}/passwords
acl_file {folder}/acl
persistence true
persistence_location {folder}/
autosave_on_changes true
autosave_interval 1
max_inflight_messages 0
max_queued_messages 0
sys_interval 0
log_dest stderr
log_type error
log_type warning
log_type notice
log_type information
{more}
"""
"""Without bounds for a subscriber, what it is to get is on its way to it before the PUBACK."""

_RELOADS = "Reloading config."
_STARTS = re.compile(r"mosquitto version \S+ starting")
_COMES = re.compile(r"New client connected from \S+ as relay ")
_GOES = re.compile(
    r"(Client relay (\[\S+\] )?(disconnected|closed|has exceeded timeout)|on client relay:)"
)


def user_properties(message: MQTTMessage) -> dict[str, str]:
    """Return those of a message by name; no name is there twice."""
    assert message.properties is not None
    pairs: list[tuple[str, str]] = message.properties.json()["UserProperty"]
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


class Mosquitto(Program):
    """`url` leads to it; the user `relay` logs in with `PASSWORD`, and its rights can be changed.

    Connections are counted of clients that call themselves `relay`.
    """

    name = "mosquitto"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.url = f"mqtt://127.0.0.1:{self.port}"
        self._heard: list[MQTTMessage] = []
        self._heard_ids: set[int] | None = None
        self._marks = 0
        self._news = Condition()
        self._subscriber: Subscriber | None = None
        self.configure()

    def command(self) -> list[str]:
        return [self.name, "-c", str(self.folder / "mosquitto.conf")]

    def configure(
        self, *, password: str = PASSWORD, topics: str = "relay/#", more: str = ""
    ) -> None:
        """Write the config for the next start."""
        text = CONFIG.format(port=self.port, folder=self.folder, more=more)
        (self.folder / "mosquitto.conf").write_text(text)
        (self.folder / "acl").write_text(
            f"user admin\ntopic readwrite #\n\nuser relay\ntopic write {topics}\n"
        )
        # Since mosquitto 2.1 `-c` overwrites no file.
        (self.folder / "passwords").unlink(missing_ok=True)
        self._put_password("-c", "admin", "admin")
        self._put_password("relay", password)

    def start(self) -> None:
        super().start()
        self.silence()
        self.subscribe()

    def kill(self) -> None:
        super().kill()
        if self._subscriber is not None:
            self._subscriber.wait_until_it_is_cut_off()

    def start_with(
        self, *, password: str = PASSWORD, topics: str = "relay/#", more: str = ""
    ) -> None:
        """Start again with another config."""
        self.kill()
        self.configure(password=password, topics=topics, more=more)
        self.start()

    def reload_with(self, *, more: str = "") -> None:
        """Change what it can change while it runs."""
        self.configure(more=more)
        before = self._log().count(_RELOADS)
        self.signal(signal.SIGHUP)
        end_s = time.monotonic() + DEADLINE_S
        while self._log().count(_RELOADS) == before:
            assert time.monotonic() < end_s, "it does not reload"
            time.sleep(0.01)

    def stop(self) -> None:
        self.silence()
        super().stop()

    def subscribe(self) -> None:
        self._subscriber = Subscriber(self.port, self._take, heard=self._heard_ids)

    def outlive_kills(self) -> None:
        """Have the subscriber lose nothing that it was sent before a kill."""
        self._heard_ids = set()

    def silence(self) -> None:
        """End the subscriber; its session stays."""
        if self._subscriber is not None:
            self._subscriber.stop()
            self._subscriber = None

    def forget_subscriber(self) -> None:
        """End the subscriber and its session, so that the topic has no subscriber."""
        self.silence()
        Link(self.port, "subscriber").close()

    def read(self) -> list[MQTTMessage]:
        """Hear all that the broker has taken until now."""
        self._marks += 1
        with Link(self.port, "marker") as link:
            link.publish(f"mark/{self._marks}")
        with self._news:
            assert self._news.wait_for(self._is_marked, DEADLINE_S), "the subscriber hears nothing"
            return [each for each in self._heard if not each.topic.startswith("mark/")]

    def connections(self) -> int:
        run = self._log()
        return len(_COMES.findall(run)) - len(_GOES.findall(run))

    def contacts(self) -> int:
        return len(_COMES.findall(self._log()))

    def _put_password(self, *words: str) -> None:
        """`-c` begins a new file."""
        flags = [word for word in words if word == "-c"]
        file = str(self.folder / "passwords")
        command = ["mosquitto_passwd", *flags, "-b", file, *words[len(flags) :]]
        subprocess.run(command, check=True, capture_output=True)

    def _log(self) -> str:
        """What it has said since its start."""
        return _STARTS.split((self.folder / "server.log").read_text())[-1]

    def _take(self, message: MQTTMessage) -> None:
        with self._news:
            self._heard.append(message)
            self._news.notify_all()

    def _is_marked(self) -> bool:
        return any(each.topic == f"mark/{self._marks}" for each in self._heard)
