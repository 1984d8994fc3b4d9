"""A running relay counts every kind of activity for open pages, without anybody watching it."""

from pathlib import Path

from tests.admin.test_api import body, send, working
from tests.caller import post
from tests.stub_server import Reply, StubServer, until

STRANGER = b"POST /webhooks HTTP/1.1\r\nHost: relay\r\nContent-Length: 0\r\n\r\n"


async def test_requests_deliveries_and_changes_are_counted_once_each(tmp_path: Path) -> None:
    async with StubServer() as destination, working(tmp_path, destination) as (relay, operator):
        activity = relay.service._activity
        for each in (post(body("a")), post(body("a")), post(b"no event"), STRANGER):
            await relay.ask(each)
        await until(lambda: activity.counts.get("delivered") == 2, what="the deliveries")
        destination.reply = lambda _: Reply(422)
        await send(relay, body("b"))
        await until(lambda: activity.counts.get("dead") == 2, what="the dead letters")
        states = activity.counts["state"]
        await operator.post("/sinks/all/pause")
        await operator.client.post("/-/reload")
        assert activity.counts == {
            "accepted": 2,
            "duplicate": 1,
            "unreadable": 1,
            "refused": 1,
            "delivered": 2,
            "dead": 2,
            "state": states + 1,
            "reload": 1,
            "change": 4,
        }
        assert not activity.watched
