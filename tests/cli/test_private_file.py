"""A secret's file is proved writable beforehand, and replaced whole."""

import asyncio
import os
import stat
import sys
from pathlib import Path

import pytest

from relay.cli import private_file
from relay.cli.private_file import SecretFile
from relay.core.config_values import Secret
from relay.core.errors import FileRefused
from tests.guarantees.small_disk import SmallDisk

ROOT = Path(__file__).parents[2]
SECRET = Secret("whsec_of_the_tests")


IN_A_NAMESPACE = """
import os, subprocess, sys
from pathlib import Path
from relay.cli.private_file import SecretFile
from relay.core.config_values import Secret
from relay.core.errors import FileRefused

folder = Path(sys.argv[1])

def refused(reserve, path):
    try:
        reserve(path).close()
    except FileRefused as error:
        print(str(error).partition(": ")[2])

with SecretFile.new(folder / "full") as file:
    with open(folder / "ballast", "ab", buffering=0) as ballast:
        try:
            while True:
                ballast.write(bytes(4096))
        except OSError:
            pass
    file.write(Secret("whsec_of_the_tests"))
print((folder / "full").read_text(), end="")
refused(SecretFile.new, folder / "other")
(folder / "ballast").unlink()
for name in ("real", "mounted"):
    (folder / name).write_text("whsec_before_the_tests")
subprocess.run(["mount", "--bind", folder / "real", folder / "mounted"], check=True)
refused(SecretFile.known, folder / "mounted")
subprocess.run(["umount", folder / "mounted"], check=True)
subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
refused(SecretFile.known, folder / "real")
refused(SecretFile.new, folder / "new")
"""


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_new_file_has_the_secret_and_mode_0600_whatever_the_umask(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    before = os.umask(0)
    try:
        with SecretFile.new(path) as file:
            assert names(tmp_path) == {".secret.new"}
            file.write(SECRET)
    finally:
        os.umask(before)
    assert names(tmp_path) == {"secret"}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Secret.resolve(f"file:{path}") == SECRET


def test_a_file_that_is_not_written_leaves_nothing(tmp_path: Path) -> None:
    with SecretFile.new(tmp_path / "secret"):
        pass
    assert names(tmp_path) == set()


def test_a_known_file_keeps_its_content_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"before\r\n")
    path.chmod(0o440)
    with SecretFile.known(path) as file:
        assert path.read_bytes() == b"before\r\n"
        file.write(SECRET)
    assert path.read_bytes() == b"whsec_of_the_tests\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o440


def test_space_for_the_secret_is_reserved(tmp_path: Path) -> None:
    with SecretFile.new(tmp_path / "secret"):
        assert (tmp_path / ".secret.new").stat().st_blocks > 0


def test_two_commands_do_not_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    with SecretFile.new(path) as file:
        with pytest.raises(FileRefused, match="another command is about to write it"):
            SecretFile.new(path)
        file.write(SECRET)
    assert names(tmp_path) == {"secret"}


def test_a_draft_that_a_kill_left_behind_is_used_again(tmp_path: Path) -> None:
    (tmp_path / ".secret.new").write_bytes(b"x" * 10_000)
    with SecretFile.new(tmp_path / "secret") as file:
        file.write(SECRET)
    assert names(tmp_path) == {"secret"}
    assert (tmp_path / "secret").read_bytes() == b"whsec_of_the_tests\n"


def test_a_draft_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    (tmp_path / ".secret.new").symlink_to(target)
    with pytest.raises(FileRefused):
        SecretFile.new(tmp_path / "secret")
    assert not target.exists()


@pytest.mark.parametrize("path", ["/proc/version", "/dev/null", "missing/secret", "loop"])
def test_a_known_file_that_cannot_be_replaced_is_refused(tmp_path: Path, path: str) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(FileRefused, match="nothing was changed"):
        SecretFile.known(tmp_path / path)


def test_other_files_are_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "state"
    private_file.replace(path, b"a longer content")
    private_file.replace(path, b"short")
    assert (path.read_bytes(), names(tmp_path)) == (b"short", {"state"})
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.servers
async def test_a_full_disk_costs_no_secret_and_mounts_are_refused_beforehand(
    tmp_path: Path,
) -> None:
    async with SmallDisk(tmp_path / "disk", size=1 << 20) as disk:
        process = await asyncio.create_subprocess_exec(
            *(*disk.prefix, sys.executable, "-c", IN_A_NAMESPACE, str(disk.folder)),
            stdout=asyncio.subprocess.PIPE,
            cwd=ROOT,
        )
        output, _ = await process.communicate()
    assert output.decode().splitlines() == [
        "whsec_of_the_tests",
        "cannot be written: No space left on device; nothing was changed",
        "cannot be written: Device or resource busy; nothing was changed",
        "cannot be written: Read-only file system; nothing was changed",
        "cannot be written: Read-only file system; nothing was changed",
    ]
