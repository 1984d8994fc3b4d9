"""Another secret comes into use on a running relay, and nothing that was signed with it is lost."""

from pathlib import Path

from tests.caller import SECRET, post, signed
from tests.operator import ADMIN
from tests.reloading import body, party
from tests.service import OTHER_SECRET, Relay

SECRETS = 'secrets = ["env:RELAY_SECRET", {{ secret = "env:OTHER_SECRET", label = "old"{} }}]'


def two_secrets(folder: Path, more: str = "") -> None:
    """Edit the config so that its source has a plain secret, and one that is labelled."""
    file = folder / "config.toml"
    text = file.read_text(encoding="utf-8")
    plain = 'secrets = ["env:RELAY_SECRET"]'
    assert plain in text
    file.write_text(text.replace(plain, SECRETS.format(more)), encoding="utf-8")


async def send(relay: Relay, event_id: str, secret: str) -> int:
    content = body(event_id)
    header = ("Service-Signature", signed(content, secret=secret))
    return (await relay.ask(post(content, header, sign=False))).status


async def test_a_metric_says_which_secret_verified(tmp_path: Path) -> None:
    async with party(tmp_path) as there:
        assert 'relay_signatures_total{secret="1",source="main"} 0.0' in (
            await there.relay.metrics()
        )
        there.write()
        two_secrets(tmp_path)
        assert (await there.operator.client.post("/-/reload")).status_code == 200
        for event_id, secret in (("a", SECRET), ("b", OTHER_SECRET), ("c", OTHER_SECRET)):
            assert await send(there.relay, event_id, secret) == 202
        counted = await there.relay.counts("relay_signatures_total")
        assert counted == {("1", "main"): 1, ("old", "main"): 2}
        await there.reload()
        assert 'secret="old"' not in await there.relay.metrics()


async def test_an_ended_secret_is_refused_and_warned_of_by_its_label(tmp_path: Path) -> None:
    async with party(tmp_path) as there:
        there.write(admin=ADMIN)
        two_secrets(tmp_path, ", until = 2026-03-02")
        assert (await there.operator.client.post("/-/reload")).status_code == 200
        assert await send(there.relay, "a", OTHER_SECRET) == 401
        assert await send(there.relay, "b", SECRET) == 202
        (line,) = there.relay.lines("config.warning")
        assert line["key"] == "source.main.secrets"
        assert line["reason"].startswith("old has reached its `until`")
        assert OTHER_SECRET not in there.relay.log
