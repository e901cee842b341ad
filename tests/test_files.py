"""A file or folder is whole or not there, and nothing half-written is left behind."""

import hashlib
import os
import stat
from pathlib import Path

import pytest

from bisrqa import files
from bisrqa.files import sha256, write_folder, write_text


class Failure(Exception):
    """Fails on purpose."""


def fail(*args, **kwargs):
    raise Failure


def tree(folder: Path) -> dict[str, str | None]:
    """Every path below a folder, and what files hold."""
    return {
        str(path.relative_to(folder)): path.read_text("utf8") if path.is_file() else None
        for path in folder.rglob("*")
    }


def fill(folder: Path, text: str) -> None:
    (folder / "deep").mkdir()
    (folder / "deep" / "file").write_text(text)


def failing_from(call: int, monkeypatch) -> None:
    """Let ``os.replace`` fail once, at its ``call``-th call."""
    calls: list[int] = []
    replace = os.replace

    def sometimes(*args):
        calls.append(1)
        if len(calls) == call:
            raise Failure
        replace(*args)

    monkeypatch.setattr(files.os, "replace", sometimes)


def test_text_is_written_and_replaced(tmp_path):
    path = tmp_path / "new" / "file.txt"
    for text in ("Zoë\n中国", "other", ""):
        write_text(path, text)
        assert tree(path.parent) == {"file.txt": text}
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


@pytest.mark.parametrize("step", ["fsync", "chmod", "replace"])
def test_a_text_that_fails_leaves_the_old_one(step, tmp_path, monkeypatch):
    write_text(tmp_path / "file.txt", "old")
    monkeypatch.setattr(files.os, step, fail)
    for name in ("file.txt", "other.txt"):
        with pytest.raises(Failure):
            write_text(tmp_path / name, "new")
    assert tree(tmp_path) == {"file.txt": "old"}


def test_a_text_that_cannot_be_encoded_leaves_the_old_one(tmp_path):
    write_text(tmp_path / "file.txt", "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(tmp_path / "file.txt", "new \ud800")
    assert tree(tmp_path) == {"file.txt": "old"}


def test_a_folder_appears_whole(tmp_path):
    path = tmp_path / "new" / "folder"
    with write_folder(path) as partial:
        assert partial.parent == path.parent  # the same file system, so that renaming works
        assert partial.name.startswith(".folder.")
        fill(partial, "first")
        assert not path.exists()
    assert tree(path.parent) == {"folder": None, "folder/deep": None, "folder/deep/file": "first"}
    assert stat.S_IMODE(path.stat().st_mode) == 0o755
    # Another takes its place; nothing of the first is mixed in.
    with write_folder(path) as partial:
        (partial / "second").write_text("second")
        assert (path / "deep" / "file").read_text() == "first"
    assert tree(path.parent) == {"folder": None, "folder/second": "second"}


@pytest.mark.parametrize("error", [Failure, KeyboardInterrupt])
def test_a_folder_that_fails_leaves_the_old_one(error, tmp_path):
    with write_folder(tmp_path / "folder") as partial:
        fill(partial, "old")
    before = tree(tmp_path)
    for name in ("folder", "other"):
        with pytest.raises(error), write_folder(tmp_path / name) as partial:  # noqa: PT012
            fill(partial, "new")
            raise error
    assert tree(tmp_path) == before


@pytest.mark.parametrize("call", [1, 2])
def test_a_rename_that_fails_leaves_the_old_folder(call, tmp_path, monkeypatch):
    with write_folder(tmp_path / "folder") as partial:
        fill(partial, "old")
    before = tree(tmp_path)
    failing_from(call, monkeypatch)
    with pytest.raises(Failure), write_folder(tmp_path / "folder") as partial:
        fill(partial, "new")
    assert tree(tmp_path) == before


def test_a_file_in_a_folders_place_stays(tmp_path):
    (tmp_path / "folder").write_text("old")
    with pytest.raises(OSError, match="folder"), write_folder(tmp_path / "folder") as partial:
        fill(partial, "new")
    assert tree(tmp_path) == {"folder": "old"}


def test_sha256(tmp_path):
    content = b"bytes" * 100_000
    (tmp_path / "file").write_bytes(content)
    assert sha256(tmp_path / "file") == hashlib.sha256(content).hexdigest()
