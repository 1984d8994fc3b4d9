"""A referenced file is read again when it changes, in whatever way it is replaced."""

import asyncio
import os
from pathlib import Path
from typing import Any

import certifi
import pytest

from relay.app import reload
from tests.app.reloading import Party, body, ids, party, sink
from tests.caller import SECRET, post, signed
from tests.outbound.http.token_endpoint import issuing
from tests.service import OTHER_SECRET
from tests.stub_server import StubServer, until

LOOK_S = 0.1


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reload, "POLL_INTERVAL_S", LOOK_S)


async def test_a_bug_changes_nothing_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> Any:
        raise ZeroDivisionError

    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    other = f'[[source]]\nname = "other"\npath = "/other"\nsecrets = ["file:{secret}"]\n'
    async with party(tmp_path, other) as there:
        with monkeypatch.context() as patch:
            patch.setattr("relay.app.reload.changes", broken)
            secret.write_text(OTHER_SECRET)
            await until(lambda: bool(there.relay.lines("relay.bug")), what="the line of the bug")
        assert await there.successful() == 0
        await there.reload(other)
        assert await there.successful() == 1


async def _knows(there: Party, secret: str) -> bool:
    """Whether the source accepts requests signed with this secret."""
    content = body("probe")
    signature = ("Service-Signature", signed(content, secret=secret))
    answer = await there.relay.ask(post(content, signature, target="/other", sign=False))
    return answer.status in (200, 202)


async def _until_known(there: Party, secret: str) -> None:
    async with asyncio.timeout(5):
        while not await _knows(there, secret):
            await asyncio.sleep(0.05)


def _replace(folder: Path, secret: str) -> None:
    (folder / "new").write_text(secret)
    (folder / "new").replace(folder / "secret")


def _write_into(folder: Path, secret: str) -> None:
    (folder / "secret").write_text(secret)


def _swap_directory(folder: Path, secret: str) -> None:
    """As the kubelet does it: `secret` is a link through `..data`, which is moved over."""
    version = folder / f"..{secret[:8]}"
    version.mkdir()
    (version / "secret").write_text(secret)
    (folder / "..data_tmp").symlink_to(version.name)
    (folder / "..data_tmp").replace(folder / "..data")


def _check_out(folder: Path, secret: str) -> None:
    """As git does it: removed first, then written anew."""
    (folder / "secret").unlink()
    (folder / "secret").write_text(secret)


@pytest.mark.parametrize("change", [_replace, _write_into, _swap_directory, _check_out])
async def test_a_changed_secret_file_is_used_within_seconds(tmp_path: Path, change: Any) -> None:
    folder = tmp_path / "secrets"
    folder.mkdir()
    if change is _swap_directory:
        _swap_directory(folder, "the-first-secret-of-it")
        (folder / "secret").symlink_to("..data/secret")
    else:
        (folder / "secret").write_text("the-first-secret-of-it")
    other = f'[[source]]\nname = "other"\npath = "/other"\nsecrets = ["file:{folder}/secret"]\n'
    async with party(tmp_path, other) as there:
        assert await _knows(there, "the-first-secret-of-it")
        change(folder, "a-second-secret-of-it\n")
        await _until_known(there, "a-second-secret-of-it")
        assert not await _knows(there, "the-first-secret-of-it")
        (line,) = there.relay.lines("config.reloaded")
        assert (line["changed"], line["reason"]) == ("source.other", "a file changed")


async def test_an_empty_secret_file_keeps_the_old_secret_and_is_reported_once(
    tmp_path: Path,
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("the-first-secret-of-it")
    other = f'[[source]]\nname = "other"\npath = "/other"\nsecrets = ["file:{secret}"]\n'
    async with party(tmp_path, other) as there:
        secret.write_text("")
        await until(lambda: bool(there.relay.lines("config.refused")), what="the refusal")
        assert await _knows(there, "the-first-secret-of-it")
        assert await there.successful() == 0
        await asyncio.sleep(6 * LOOK_S)
        (line,) = there.relay.lines("config.refused")
        assert line["faults"] == "source[1] (other).secrets[0]"
        secret.write_text("a-second-secret-of-it")
        await _until_known(there, "a-second-secret-of-it")
        assert await there.successful() == 1


async def test_a_changed_file_does_not_apply_edits_of_the_document(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("the-first-secret-of-it")
    other = f'[[source]]\nname = "other"\npath = "/other"\nsecrets = ["file:{secret}"]\n'
    async with party(tmp_path, other) as there:
        await there.reload(other, status=422, more="half an edit")
        secret.write_text("a-second-secret-of-it")
        await _until_known(there, "a-second-secret-of-it")
        # The document is as bad as before, whatever happens to the files.
        assert await there.successful() == 0
        await there.reload(other)
        assert await there.successful() == 1


async def test_a_sink_whose_secret_changed_in_a_file_is_replaced(tmp_path: Path) -> None:
    url = tmp_path / "url"
    async with StubServer() as old, StubServer() as new:
        url.write_text(old.url())
        table = sink("crm", f"file:{url}")
        async with party(tmp_path, table) as there:
            await there.send("a")
            await until(lambda: ids(old) == ["a"], what="the first event")
            url.write_text(new.url())
            await until(lambda: bool(there.relay.lines("config.reloaded")), what="the reload")
            await there.send("b")
            await until(lambda: ids(new) == ["b"], what="the event at the new place")


async def test_a_pipe_as_a_secret_is_read_once(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.write(write_end, b"the-secret-of-a-pipe")
    os.close(write_end)
    reference = f"file:/dev/fd/{read_end}"
    other = f'[[source]]\nname = "other"\npath = "/other"\nsecrets = ["{reference}"]\n'
    try:
        async with party(tmp_path, other) as there:
            await asyncio.sleep(6 * LOOK_S)
            assert await _knows(there, "the-secret-of-a-pipe")
            assert there.relay.lines("config.refused") == []
            problem = await there.reload(other, status=422)
            assert "is empty" in problem["faults"][0]["message"]
    finally:
        os.close(read_end)


async def test_a_sink_is_replaced_when_its_certificates_change(
    tmp_path: Path, destination: StubServer
) -> None:
    authority = tmp_path / "ca.pem"
    pem = Path(certifi.where()).read_text(encoding="utf-8")
    authority.write_text(pem)
    crm = sink("crm", "https://127.0.0.1:9/", f'ca_file = "{authority}"')
    async with party(tmp_path, crm, sink("bi", destination.url())) as there:
        authority.write_text(pem + "\n# of another day\n")
        await until(lambda: bool(there.relay.lines("config.reloaded")), what="the reload")
        (line,) = there.relay.lines("config.reloaded")
        assert line["changed"] == "sink.crm"
        authority.write_text("no certificate")
        await until(lambda: bool(there.relay.lines("config.refused")), what="the refusal")
        (line,) = there.relay.lines("config.refused")
        assert line["faults"] == "sink[0] (crm).ca_file"


async def test_a_rotated_client_secret_brings_new_tokens_and_no_event_is_lost(
    tmp_path: Path, destination: StubServer
) -> None:
    async with issuing() as endpoint:
        destination.reply = endpoint.call
        secret = tmp_path / "client-secret"
        secret.write_text(endpoint.secret)
        keys = {**endpoint.table(), "client_secret": f"file:{secret}"}
        oauth2 = "".join(f'{key} = "{value}"\n' for key, value in keys.items())
        table = sink("crm", destination.url(), f"[sink.oauth2]\n{oauth2}")
        async with party(tmp_path, table) as there:
            await there.send("a")
            await until(lambda: len(destination.requests) == 1, what="the first event")
            endpoint.secret = "marked-new-secret"
            endpoint.valid.clear()
            await there.send("b")
            await until(lambda: bool(there.relay.lines("sink.parked")), what="the parked sink")
            (line,) = there.relay.lines("sink.parked")
            assert "no token from the token endpoint: 401 invalid_client" in line["reason"]
            secret.write_text(endpoint.secret)
            await until(
                lambda: destination.requests[-1].header["authorization"] == "Bearer marked-token-2",
                what="the event that waited, with a token for the new secret",
            )
            assert ids(destination)[-1] == "b"
            assert len(endpoint.issued) == 2
            assert "marked" not in there.relay.log
