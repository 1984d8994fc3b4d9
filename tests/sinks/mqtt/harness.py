"""The `mqtt` sink's destination: a real mosquitto, made to fail as operators see it fail."""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from msgspec.structs import replace

from relay.core.errors import Misconfigured, Refused, Temporary
from relay.core.event import Event
from tests.brokers.authority import Authority
from tests.brokers.mosquitto import PASSWORD, Mosquitto, user_properties
from tests.ports import free_port
from tests.sinks.conformance import Message, Variety, watched_in
from tests.sinks.servers import OwnServer


class MqttHarness(OwnServer[Mosquitto]):
    program = Mosquitto
    sink_type = "mqtt"
    secrets = (PASSWORD, "marked")
    failures: ClassVar = {
        "nobody listens": Temporary,
        "the memory is full": Temporary,
        "larger than a message may be": Refused,
        "larger than a packet may be": Refused,
        "the password is wrong": Misconfigured,
        "the user may not publish": Misconfigured,
        "no confirmation is to be had": Misconfigured,
        "nobody subscribes": Misconfigured,
    }
    reasons: ClassVar = {
        "nobody listens": "connection refused",
        "larger than a message may be": "larger than the broker takes",
        "the password is wrong": "wrong username or password, or no right to connect",
        "the user may not publish": "the user may not publish to this topic",
        "no confirmation is to be had": "the broker does not support QoS 1",
        "nobody subscribes": "nobody subscribes to the topic of lead.captured",
    }
    wrong: ClassVar = {"unheard": "shout"}
    bare: ClassVar = {"url": "mqtt://127.0.0.1"}
    shown: ClassVar = {"topic": "relay/lead.captured"}
    faults: ClassVar = (
        ({"url": "http://marked.example"}, "url: expected mqtt:// or mqtts:// and a host"),
        ({"url": "mqtt://"}, "url: expected mqtt:// or mqtts:// and a host"),
        ({"url": "mqtt://marked:70000"}, "url: expected mqtt:// or mqtts:// and a host"),
        ({"url": "mqtt://a:marked@b"}, "url: username and password have keys of their own"),
        ({"url": "mqtt://b/marked"}, "url: nothing may follow the port"),
        ({"url": "mqtt://b", "ca_file": "/x"}, "url: expected mqtts://, because TLS files"),
        ({"topic": "relay/#"}, r"topic: does not fit: expected levels .*, without \+ and #"),
        ({"topic": "relay/+/x"}, "topic: does not fit: expected levels"),
        ({"topic": "a\nb"}, "topic: does not fit: expected levels"),
        ({"topic": ""}, "topic: is empty"),
        ({"topic": "x" * 65_536}, "topic: is longer than 65535 bytes"),
        ({"topic": "{{ nothing }}"}, "topic: line 1: no such name: nothing"),
        ({"topic": "{{ data.nix }}"}, "topic: line 1: nix is missing in this event"),
        ({"client_id": "a\nb"}, "client_id: expected printable characters"),
        ({"client_id": "x" * 65_536}, "client_id: is longer than 65535 bytes"),
        ({"password": "x" * 65_536}, "password: is longer than 65535 bytes"),
        ({"url": "mqtts://b", "ca_file": "/nowhere"}, "ca_file: cannot be read: No such file"),
        ({"url": "mqtts://b", "client_key_file": "/x"}, "client_key_file: needs client_cert_file"),
    )
    peer = "broker"
    deviations: ClassVar = {
        "retry_after_is_kept_in_both_forms": "MQTT has no way to ask for a pace",
    }

    def __init__(self) -> None:
        super().__init__()
        self._undo: Callable[[], None] = lambda: None

    def table(self) -> dict[str, Any]:
        return {
            "url": self.server.url,
            "username": "relay",
            "password": PASSWORD,
            "client_id": "relay",
        }

    def messages(self) -> list[Message]:
        return [
            Message(named["relay-id"], bytes(message.payload), watched_in(named))
            for message in self.server.read()
            for named in (user_properties(message),)
        ]

    async def fail(self, how: str) -> None:
        server = self.server
        match how:
            case self.down:
                await self._change(server.kill, undo=server.start)
            case "the memory is full":
                change = partial(server.reload_with, more="memory_limit 1")
                await self._change(change, undo=server.start_with)
            case "nobody subscribes":
                await self._change(server.forget_subscriber, undo=server.subscribe)
            case _:
                change = partial(server.start_with, **CONFIGS[how])
                await self._change(change, undo=server.start_with)

    async def vary(self, event: Event) -> Variety:
        """Take a large one for the bad one: mosquitto hangs up after it has refused a topic."""
        bad = replace(event, body=event.body.ljust(await self.limit() + 1))
        unfit = replace(event, source="x" * 65_536)
        return Variety({"topic": "relay/{{ source }}"}, event, bad, unfit, Refused)

    async def limit(self) -> int:
        await self._change(partial(self.server.start_with, more="max_packet_size 5000"))
        return 5000

    async def secure(self, folder: Path) -> tuple[Authority, Mapping[str, Any]]:
        authority, port = Authority(folder), free_port()
        pair = authority.issue("broker")
        files = f"cafile {authority.file}\ncertfile {pair}\nkeyfile {pair}"
        more = f"listener {port} 127.0.0.1\n{files}\nrequire_certificate true"
        await self._change(partial(self.server.start_with, more=more))
        return authority, {"url": f"mqtts://127.0.0.1:{port}"}

    def without_tls(self) -> Mapping[str, Any]:
        return {"url": self.server.url.replace("mqtt:", "mqtts:")}

    async def hang(self) -> None:
        await self._change(self.server.freeze, undo=self.server.thaw)

    async def recover(self) -> None:
        await asyncio.to_thread(self._undo)

    async def _change(
        self, change: Callable[[], None], *, undo: Callable[[], None] = lambda: None
    ) -> None:
        """Let the loop run meanwhile, so that the sink reads the end of what is cut."""
        self._undo = undo
        await asyncio.to_thread(change)

    def connections(self) -> int:
        return self.server.connections()

    def contacts(self) -> int:
        return self.server.contacts()


CONFIGS = {
    "larger than a message may be": {"more": "message_size_limit 10"},
    "larger than a packet may be": {"more": "max_packet_size 100"},
    "no confirmation is to be had": {"more": "max_qos 0"},
    "the password is wrong": {"password": "another"},
    "the user may not publish": {"topics": "elsewhere"},
}
