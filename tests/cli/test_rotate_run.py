"""`relay rotate run` on a running relay, through the API of a real sandbox."""

import asyncio
import json
import stat
from pathlib import Path

import pytest

from tests.cli.sender import Developer, developing, receiving
from tests.guarantees.process import Relay, until
from tests.operator import ADMIN, TOKEN

pytestmark = pytest.mark.long

RUN = "rotate run --source main"


def in_use(developer: Developer, endpoint: str) -> bool:
    """Whether the file has the service's secret, and nothing else is left beside it."""
    names = {path.name for path in developer.folder.iterdir()}
    assert not {name for name in names if name.startswith(".")}
    return developer.secret.read_text(encoding="utf-8") == f"{developer.secret_of(endpoint)}\n"


async def arrives(developer: Developer, relay: Relay, endpoint: str) -> None:
    """Wait until an event that the service signs now is accepted."""
    before = await relay.metric("relay_events_total", outcome="accepted")
    await developer.served.ask("POST", f"/v1/webhooks/{endpoint}/test")

    async def accepted() -> bool:
        return await relay.metric("relay_events_total", outcome="accepted") > before

    await until(accepted, what="the event's acceptance")


async def test_a_rotation_says_its_steps_and_leaves_nothing_beside_the_secret(
    developer: Developer,
) -> None:
    async with receiving(developer) as (relay, endpoint):
        before = developer.secret_of(endpoint)
        done = await developer.run(RUN)
        assert done.exit_code == 0, done.output
        first, *lines = (line.strip() for line in done.output.splitlines())
        assert first.startswith("1/5  requests that match no secret are kept until 20")
        assert lines == [
            f"2/5  asking the API for a new secret of {endpoint}",
            f"3/5  the new secret is in {developer.secret}",
            "4/5  the relay uses it; 0 kept requests were admitted",
            "5/5  no other requests are kept any more",
            "main: rotated",
            "kept        0",
            "verified    0",
            "duplicates  0",
            "unverified  0",
        ]
        assert developer.secret_of(endpoint) != before
        assert in_use(developer, endpoint)
        assert developer.secret_of(endpoint) not in done.output
        assert stat.S_IMODE(developer.secret.stat().st_mode) == 0o600
        await arrives(developer, relay, endpoint)


async def test_mode_and_owner_of_the_secrets_file_stay(tmp_path: Path) -> None:
    async with developing(tmp_path) as developer, receiving(developer) as (_, endpoint):
        real = tmp_path / "real"
        developer.secret.rename(real)
        developer.secret.symlink_to(real)
        real.chmod(0o640)
        before = real.stat()
        assert (await developer.run(RUN)).exit_code == 0
        after = real.stat()
        assert developer.secret.is_symlink()
        assert in_use(developer, endpoint)
    assert (after.st_mode, after.st_uid, after.st_gid) == (
        before.st_mode,
        before.st_uid,
        before.st_gid,
    )


async def test_a_secret_that_cannot_be_written_is_refused_before_anything_changes(
    developer: Developer,
) -> None:
    async with receiving(developer) as (relay, endpoint):
        before = developer.secret_of(endpoint)
        text, reference = relay.config.read_text(encoding="utf-8"), f'"file:{developer.secret}"'
        for secrets, cause in (
            ('"env:PATH"', "is in the environment, where no command can change it"),
            ('"a-secret-in-the-config"', "is in the config itself, where no command can change it"),
            ('"file:/proc/version"', "/proc/version: cannot be written"),
            (f'{reference}, "env:PATH"', "has not exactly one valid secret; give --label"),
            (f"{{ secret = {reference}, until = 2020-01-01 }}", "give --label, one of: none"),
        ):
            relay.config.write_text(text.replace(reference, secrets), encoding="utf-8")
            done = await developer.run(RUN)
            assert (done.exit_code, cause in done.output) == (1, True), done.output
        other = text.replace('"main"', '"b"').replace("/webhooks", "/b")
        shared = other[other.index("[[source]]") : other.index("[source.api]")]
        relay.config.write_text(f"{text}\n{shared}", encoding="utf-8")
        assert f"refers to {reference[1:-1]} twice" in (await developer.run(RUN)).output
        assert developer.secret_of(endpoint) == before
        status = await developer.run("rotate status --source main")
        assert status.output == "main: no rotation, or it has expired.\n"


async def test_a_label_says_which_secret_changes(developer: Developer) -> None:
    async with receiving(developer) as (relay, endpoint):
        text = relay.config.read_text(encoding="utf-8")
        reference = f'"file:{developer.secret}"'
        table = f'"env:PATH", {{ secret = {reference}, label = "new" }}'
        relay.config.write_text(text.replace(reference, table), encoding="utf-8")
        assert "one of: 1, new" in (await developer.run(f"{RUN} --label old")).output
        done = await developer.run(f"{RUN} --label new")
        assert done.exit_code == 0, done.output
        assert in_use(developer, endpoint)


async def test_a_failure_before_the_change_changes_nothing(developer: Developer) -> None:
    async with receiving(developer) as (relay, endpoint):
        before = developer.secret_of(endpoint)

        async def refused(cause: str) -> None:
            done = await developer.run(RUN)
            assert (done.exit_code, cause in done.output) == (1, True), done.output
            assert done.output.rstrip().endswith("nothing was changed")
            assert developer.secret_of(endpoint) == before
            assert in_use(developer, endpoint)

        text, table = relay.config.read_text(encoding="utf-8"), developer.api()
        developer.is_admin = False
        relay.config.write_text(text.replace(table, developer.api()), encoding="utf-8")
        await refused("no access")
        relay.config.write_text(text, encoding="utf-8")
        await developer.served.control("down", {"seconds": 60})
        await refused("connection closed")
        status = await developer.run("rotate status --source main")
        assert status.output == "main: no rotation, or it has expired.\n"
        await relay.stop()
        await refused("cannot connect to the relay")


async def test_a_lost_answer_requires_another_rotation(developer: Developer) -> None:
    async with receiving(developer) as (_, endpoint):
        before = developer.secret_of(endpoint)
        await developer.served.control("answers", {"drop": ["secret"]})
        done = await developer.run(RUN)
        assert done.exit_code == 1
        assert "run the command again, and it rotates once more" in done.output
        lost = developer.secret_of(endpoint)
        assert lost != before
        await developer.served.control("answers", {})
        await developer.served.ask("POST", f"/v1/webhooks/{endpoint}/test")
        attempts = developer.served.sandbox.workspace.attempts
        await until(lambda: any(each.status == 401 for each in attempts), what="a refusal")
        done = await developer.run(RUN)
        assert done.exit_code == 0, done.output
        assert "was interrupted as the API rotated" in done.output
        assert "Unverified requests match no secret of the config" in done.output
        assert developer.secret_of(endpoint) not in {before, lost}
        assert in_use(developer, endpoint)
        await until(lambda: attempts[-1].state == "delivered", what="the sender's next try")
        assert "was interrupted" not in (await developer.run(RUN)).output


async def test_an_answer_that_is_lost_once_is_asked_for_again(developer: Developer) -> None:
    async with receiving(developer) as (_, endpoint):
        before = developer.secret_of(endpoint)
        await developer.served.control("answers", {"drop": ["secret"]})
        running = asyncio.create_task(developer.run(RUN))
        await until(lambda: developer.secret_of(endpoint) != before, what="the first rotation")
        lost = developer.secret_of(endpoint)
        await developer.served.control("answers", {})
        done = await running
        assert done.exit_code == 0, done.output
        assert "broken answer: the secret may have changed; asking for another" in done.output
        assert developer.secret_of(endpoint) != lost
        assert in_use(developer, endpoint)


async def test_a_refused_config_is_finished_by_the_next_run(developer: Developer) -> None:
    async with receiving(developer) as (relay, endpoint):
        text = relay.config.read_text(encoding="utf-8")
        relay.config.write_text(f"{text}\n[log]\nlevel = 'loud'\n", encoding="utf-8")
        done = await developer.run(RUN)
        assert done.exit_code == 1
        assert "log.level" in done.output
        assert "the new secret is in" in done.output
        relay.config.write_text(text, encoding="utf-8")
        done = await developer.run(f"{RUN} --json")
        document = json.loads(done.stdout)
        assert (document["resumed"], document["state"]) == ("written", "over")
        assert "wrote the new secret: finishing it" in done.stderr
        assert in_use(developer, endpoint)
        await arrives(developer, relay, endpoint)


async def test_the_relay_is_found_by_url_and_token(developer: Developer) -> None:
    async with receiving(developer) as (relay, endpoint):
        text = relay.config.read_text(encoding="utf-8")
        relay.config.write_text(
            text.replace(str(relay.admin_port), "1").replace(ADMIN, ""), encoding="utf-8"
        )
        done = await developer.run(f"{RUN} --url {relay.admin_url} --token {TOKEN}")
        # The relay refuses a change of its own address, and the secret is in place nevertheless.
        assert "server.admin_listen" in done.output
        relay.config.write_text(text, encoding="utf-8")
        assert (await developer.run(RUN)).exit_code == 0
        assert in_use(developer, endpoint)


async def test_a_relay_that_dies_during_a_rotation_has_the_new_secret_after_its_start(
    tmp_path: Path, developer: Developer
) -> None:
    async with receiving(developer) as (relay, endpoint):
        await developer.served.control("answers", {"slow": 1.0})
        running = asyncio.create_task(developer.run(RUN))
        await until((tmp_path / ".secret.rotation").exists, what="the question to the API")
        await relay.kill()
        done = await running
        assert done.exit_code == 1
        assert "cannot connect to the relay" in done.output
        assert "the new secret is in" in done.output
        await developer.served.ask("POST", f"/v1/webhooks/{endpoint}/test")
        await relay.start()
        done = await developer.run(RUN)
        assert done.exit_code == 0, done.output
        assert "wrote the new secret: finishing it" in done.output
        assert in_use(developer, endpoint)
        attempts = developer.served.sandbox.workspace.attempts
        await until(lambda: attempts[-1].state == "delivered", what="the sender's next try")
