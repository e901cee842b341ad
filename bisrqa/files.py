"""Writing so that a file or folder is either whole or not there."""

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """Replace a file by ``text`` in one step."""
    write_bytes(path, text.encode("utf8"))


def write_bytes(path: Path, content: bytes) -> None:
    """Replace a file by ``content`` in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(partial, 0o644)
        os.replace(partial, path)
    except BaseException:
        os.unlink(partial)
        raise


@contextlib.contextmanager
def write_folder(path: Path) -> Iterator[Path]:
    """Fill a folder under a temporary name.

    It gets its own name when the block ends without an error, in place of a folder that had it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        yield partial
        for file in partial.rglob("*"):
            if file.is_file():
                sync(file)
        partial.chmod(0o755)
        if path.exists():
            _take_place_of(path, partial)
        else:
            os.replace(partial, path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    sync(path.parent)


def _take_place_of(path: Path, partial: Path) -> None:
    stale = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.old."))
    try:
        os.replace(path, stale)
        os.replace(partial, path)
    except BaseException:
        if path.exists():
            shutil.rmtree(stale, ignore_errors=True)
        else:
            os.replace(stale, path)
        raise
    shutil.rmtree(stale)


def sync(path: Path) -> None:
    """Make a file, or renames inside a folder, last through a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256(path: Path) -> str:
    """Hex digest of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
