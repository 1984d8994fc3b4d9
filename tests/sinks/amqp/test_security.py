"""How the `amqp` sink logs in to a real RabbitMQ: TLS both ways, virtual hosts, rights."""

import traceback
from collections.abc import AsyncIterator

import pytest

from relay.core.errors import Misconfigured, SinkError, Temporary
from relay.core.event import Event
from relay.sinks.amqp import sink as amqp
from tests.brokers.rabbitmq import PASSWORD, RabbitMq
from tests.sinks.amqp.conftest import Make
from tests.sinks.amqp.harness import AmqpHarness

RIGHTS = "permissions/own/relay"
ALL = {"configure": ".*", "write": ".*", "read": ".*"}
NO_HOST = "the virtual host is missing, or the user has no right to it"


@pytest.fixture
def server(destination: AmqpHarness) -> RabbitMq:
    return destination.server


async def fault(sink: amqp.AmqpSink, event: Event) -> tuple[type[SinkError], str]:
    """What a send and a check agree on; the password shows in neither."""
    found = set()
    for trial in (sink.send(event), sink.check()):
        with pytest.raises(SinkError) as caught:
            await trial
        assert PASSWORD not in "".join(traceback.format_exception(caught.value))
        found.add((type(caught.value), caught.value.reason))
    assert len(found) == 1
    return found.pop()


async def test_a_broker_that_speaks_no_tls_is_temporary(
    destination: AmqpHarness, make: Make, lead: Event
) -> None:
    sink = make(url=destination.table()["url"].replace("amqp:", "amqps:"))
    assert await fault(sink, lead) == (
        Temporary,
        "the broker does not speak TLS at this port",
    )


async def test_a_virtual_host_that_is_missing_is_misconfigured(
    server: RabbitMq, make: Make, lead: Event
) -> None:
    sink = make(url=f"{server.url}/nowhere")
    assert await fault(sink, lead) == (Misconfigured, NO_HOST)


@pytest.fixture
async def host(server: RabbitMq) -> AsyncIterator[str]:
    """Make a virtual host with nothing in it, which the user may enter."""
    server.manage("PUT", "vhosts/own")
    server.manage("PUT", RIGHTS, ALL)
    yield "own"
    server.manage("DELETE", "vhosts/own")


async def test_a_virtual_host_without_rights_parks_until_there_are_some(
    server: RabbitMq, make: Make, lead: Event, host: str
) -> None:
    sink = make(url=f"{server.url}/{host}")
    server.manage("DELETE", RIGHTS)
    assert await fault(sink, lead) == (Misconfigured, NO_HOST)
    server.manage("PUT", RIGHTS, ALL)
    assert await entered(sink, lead)


async def test_a_virtual_host_that_is_down_is_waited_for(
    server: RabbitMq, make: Make, lead: Event, host: str
) -> None:
    sink = make(url=f"{server.url}/{host}")
    server.evaluate(f'rabbit_vhost_sup_sup:stop_and_delete_vhost(<<"{host}">>)')
    kind, reason = await fault(sink, lead)
    assert (kind, reason.partition(",")[0]) == (Temporary, "the virtual host is down")
    server.evaluate(f'rabbit_vhost_sup_sup:start_vhost(<<"{host}">>)')
    assert await entered(sink, lead)


async def test_a_virtual_host_that_takes_no_more_connections_is_waited_for(
    server: RabbitMq, make: Make, lead: Event, host: str
) -> None:
    sink = make(url=f"{server.url}/{host}")
    limit = f"vhost-limits/{host}/max-connections"
    server.manage("PUT", limit, {"value": 0})
    kind, reason = await fault(sink, lead)
    assert kind is Temporary
    assert reason.startswith("the broker takes no more connections")
    server.manage("DELETE", limit)
    assert await entered(sink, lead)


async def entered(sink: amqp.AmqpSink, event: Event) -> bool:
    """Whether the sink comes as far as to find that the virtual host has no such queue."""
    with pytest.raises(Misconfigured) as caught:
        await sink.send(event)
    return caught.value.reason.startswith("no queue takes the routing key")
