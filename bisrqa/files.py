"""Writing so that a file or folder is either whole or not there, and saying why it is not.

A disk that is full fails a write in as many ways as there are libraries that write. Here it is one
:class:`OSError`, with the file, the room there is, and what to do.
"""

import contextlib
import errno
import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError

logger = logging.getLogger(__name__)

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_SAID = (
    "PytorchStreamWriter failed writing",
    "unexpected pos",
    "StorageFull",
    "code: 28",
    "code: 27",
    "os error 28",
    "os error 27",
    " requested and ",
)
"""How torch, safetensors and NumPy say that a file could not be written to its end."""


def write_text(path: Path, text: str) -> None:
    """Replace a file by ``text`` in one step."""
    write_bytes(path, text.encode("utf8"))


def write_bytes(path: Path, content: bytes) -> None:
    """Replace a file by ``content`` in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with room_for(path, len(content)):
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


def append_text(path: Path, text: str) -> None:
    """Add to a file; a process that dies may leave a last line that is cut off."""
    with room_for(path, len(text.encode("utf8"))), path.open("a", encoding="utf8") as stream:
        stream.write(text)


@contextlib.contextmanager
def room_for(path: Path, size: int | None = None) -> Iterator[None]:
    """Say of a write that finds no room what it was, and what can be done.

    Args:
        path: What is written, in a folder that is there.
        size: Bytes, if they are known.

    Raises:
        OSError: No room; other errors pass.
    """
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        full = isinstance(error, OSError) and error.errno in _FULL
        if not full and not any(words in str(error) for words in _SAID):
            raise
        raise _no_room(path, size) from error


def _no_room(path: Path, size: int | None) -> OSError:
    free = shutil.disk_usage(path.parent).free
    wanted = f" ({size / 1e6:,.1f} MB)" if size else ""
    return OSError(
        f"no room on the disk for {path}{wanted}: {free / 1e6:,.1f} MB are free, or less by a "
        "quota or a limit on files. Make room, or choose a folder on another disk; what was saved "
        "before is whole, and the same command goes on from there"
    )


def check_writable(folder: Path, key: str, *, needed: bool = True) -> None:
    """Find out early that a folder cannot be written; makes it where it is not there.

    Args:
        folder: Where something will be written.
        key: The setting that names it.
        needed: False only warns of a folder that is there: it may hold all that is asked of it.

    Raises:
        ValueError: It cannot; names the setting.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        message = f"{key}: {folder} cannot be written ({error.strerror}); name another folder"
        if needed or not folder.is_dir():
            raise ValueError(message) from error
        logger.warning("%s, unless it holds all that is needed", message)


@contextlib.contextmanager
def write_folder(path: Path, size: int | None = None) -> Iterator[Path]:
    """Fill a folder under a temporary name.

    It gets its own name when the block ends without an error, in place of a folder that had it.

    Args:
        path: Its own name.
        size: Bytes that it will take, if they are known; no room for them is found out at once.

    Raises:
        OSError: No room; says what to do.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if size is not None and size > shutil.disk_usage(path.parent).free:
        raise _no_room(path, size)
    with room_for(path, size), _written_as(path) as partial:
        yield partial


@contextlib.contextmanager
def _written_as(path: Path) -> Iterator[Path]:
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
