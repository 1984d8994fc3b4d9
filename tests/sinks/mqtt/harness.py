"""The `mqtt` sink's destination: a real mosquitto, made to fail as operators see it fail."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from relay.core.errors import Misconfigured, Refused, Temporary
from tests.brokers.mosquitto import PASSWORD, Mosquitto, user_properties
from tests.sinks.conformance import Message, watched_in
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
    wrong: ClassVar = {"unheard": "shout"}
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

    async def hang(self) -> None:
        await self._change(self.server.freeze, undo=self.server.thaw)

    async def recover(self) -> None:
        await asyncio.to_thread(self._undo)

    async def _change(self, change: Callable[[], None], *, undo: Callable[[], None]) -> None:
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
