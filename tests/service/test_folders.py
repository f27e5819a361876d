"""Private folders: gone with their owner, and what a killed owner left goes with the next one."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from dsparkd.scheduler.service import folders
from dsparkd.scheduler.service.folders import PrivateFolder, stale_folders

HOLD = "from dsparkd.scheduler.service.folders import PrivateFolder as P; f = P(); print(f.path, flush=True); input()"


@pytest.fixture(autouse=True)
def _own_temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)


def aged(path: Path) -> None:
    old = time.time() - 2 * folders._YOUNG_S
    os.utime(path, (old, old))


def test_a_folder_is_private_and_gone_after_its_removal() -> None:
    one = PrivateFolder()
    assert one.path.stat().st_mode & 0o777 == 0o700
    one.remove()
    assert not one.path.exists()


def test_a_live_owners_folder_is_never_swept_and_a_killed_owners_is() -> None:
    owner = subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    path = Path(owner.stdout.readline().strip())
    aged(path)
    assert list(stale_folders()) == []
    PrivateFolder().remove()
    assert path.exists()
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    assert list(stale_folders()) == [path]
    PrivateFolder().remove()
    assert not path.exists()


@pytest.mark.parametrize("name", ["dsparkd-0.1.0", "dsparkd-results", folders.PREFIX + "results"])
@pytest.mark.parametrize("lock", [None, b"", b"123\n", folders.MARK + b"more"])
@pytest.mark.parametrize("content", ["precious.txt", "src/precious.txt"])
def test_a_folder_that_only_has_a_name_like_ours_is_left_alone(
    tmp_path: Path, name: str, lock: bytes | None, content: str
) -> None:
    precious = tmp_path / name / content
    precious.parent.mkdir(parents=True)
    precious.write_text("x")
    if lock is not None:
        (tmp_path / name / "lock").write_bytes(lock)
    aged(tmp_path / name)
    PrivateFolder().remove()
    assert precious.read_text() == "x"


@pytest.mark.parametrize("lock", [None, b""])
def test_what_an_owner_left_that_was_killed_before_its_mark_is_swept(tmp_path: Path, lock: bytes | None) -> None:
    left = tmp_path / f"{folders.PREFIX}abc"
    left.mkdir()
    if lock is not None:
        (left / "lock").write_bytes(lock)
    aged(left)
    PrivateFolder().remove()
    assert not left.exists()


def test_young_folders_foreign_names_and_files_are_left_alone(tmp_path: Path) -> None:
    prefix = folders.PREFIX
    young, other, file = tmp_path / f"{prefix}young", tmp_path / "other", tmp_path / f"{prefix}file"
    young.mkdir()
    other.mkdir()
    file.write_text("mine")
    for path in (other, file):
        aged(path)
    PrivateFolder().remove()
    assert young.exists() and other.exists() and file.exists()
