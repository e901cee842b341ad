"""What disks and processes do to a run: it says what is wrong, and loses nothing that was saved."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from accelerate import Accelerator

from bisrqa import checkpoint, evaluation, files, partial, runs, training
from bisrqa.graph.embed import EmbeddingStore
from bisrqa.training import Trainer

ROOT = Path(__file__).parent.parent
NO_ROOM = r"no room on the disk for .*{}.* MB are free.*Make room, or choose"


def settings(folder, name="run", most=4):
    steps = {"epochs": 9, "max_steps": most, "batch_size": 4, "eval_every": 2, "patience": None}
    return tiny.config(name=name, output_dir=str(folder), training=steps)


def trainer(config):
    torch.manual_seed(config.seed)
    model, examples = tiny.model(config), tiny.examples()
    runs.start(config, model.generator.fingerprint, examples, examples)
    prepared = model.prepare(examples)
    return Trainer(config, Accelerator(cpu=True), model, prepared, prepared[:4])


def log(config):
    lines = (config.run_dir / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    config = settings(tmp_path_factory.mktemp("unbroken"))
    trainer(config).fit()
    return config


KILLED = """
import os, signal, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
import test_faults
from bisrqa import checkpoint, files, runs

folder = Path(sys.argv[1])


def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)


def writing():
    save = torch.save

    def half(state, file):
        save(state, file)
        if state["step"] == 4:
            with open(file, "r+b") as stream:
                stream.truncate(file.stat().st_size // 2)
            die()

    torch.save = half


def renaming():
    replace = os.replace
    os.replace = lambda a, b: die() if str(b).endswith("step-000004") else replace(a, b)


def naming():
    checkpoint.set_best = lambda run_dir, step: die()


def deleting():
    def some(folder):
        next(file for file in folder.iterdir() if file.name == "trainer.pt").unlink()
        die()

    checkpoint.shutil.rmtree = some


def logging():
    append = runs.append_text

    def half(file, text):
        append(file, text[: len(text) // 2] if '"step": 3' in text else text)
        '"step": 3' in text and die()

    runs.append_text = half


for breaks in (writing, renaming, naming, deleting, logging):
    child = os.fork()
    if child == 0:
        breaks()
        test_faults.trainer(test_faults.settings(folder, breaks.__name__, 6)).fit()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL, breaks
"""


def test_a_run_that_is_killed_anywhere_goes_on_to_the_same_losses(tmp_path, set_threads):
    set_threads(1)  # as the processes that are killed: sums depend on it
    unbroken = settings(tmp_path, "unbroken", 6)
    trainer(unbroken).fit()
    (tmp_path / "script.py").write_text(KILLED)
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(tmp_path / "script.py"), str(tmp_path)]
    subprocess.run(command, env=environment, check=True, timeout=300)
    for name in ("writing", "renaming", "naming", "deleting", "logging"):
        config = settings(tmp_path, name, 6)
        trainer(config).fit()
        assert log(config) == log(unbroken), name
        one, other = (checkpoint.steps(c.run_dir)[-1] for c in (config, unbroken))
        for file in ("encoder.safetensors", "adapter/adapter_model.safetensors"):
            assert (one / file).read_bytes() == (other / file).read_bytes(), name
        assert not list(config.run_dir.glob(".step-*"))


def full(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def full_in_torch(*_, **__):
    raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0")


@pytest.mark.parametrize(
    ("where", "how"),
    [("save_file", full), ("torch.save", full_in_torch), ("sha256", full), ("write_folder", None)],
)
def test_a_full_disk_leaves_the_checkpoint_before(tmp_path, unbroken, monkeypatch, where, how):
    config = settings(tmp_path)
    run = trainer(config)
    written = run._written

    def second(run_dir, state):
        if state["step"] < 4:
            return written(run_dir, state)
        with monkeypatch.context() as patched:
            if how is None:  # it is known beforehand that there is no room
                usage = os.statvfs_result((4096, 4096, 9, 1, 1, 9, 9, 9, 0, 255))
                patched.setattr(files.os, "statvfs", lambda _: usage)
            else:
                target = checkpoint.torch if "." in where else checkpoint
                patched.setattr(target, where.rsplit(".", 1)[-1], how)
            return written(run_dir, state)

    run._written = second
    with pytest.raises(OSError, match=NO_ROOM.format(r"step-000004 \(0\.\d MB\)")):
        run.fit()
    assert [step.name for step in checkpoint.steps(config.run_dir)] == ["step-000002"]
    assert not list(config.run_dir.glob(".step-*"))
    checkpoint.load(checkpoint.best(config.run_dir), tiny.model(config), base_name="")
    trainer(config).fit()
    assert log(config) == log(unbroken)


class Full:
    """A stream of a disk without room."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        full()

    def write(self, text):
        return len(text)


def test_a_full_disk_is_named_where_lines_are_added(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "open", lambda *_, **__: Full())
    with pytest.raises(OSError, match=NO_ROOM.format(r"metrics\.jsonl")):
        runs.append_log(tmp_path, {"step": 1})
    with pytest.raises(OSError, match=NO_ROOM.format(r"predictions\.partial-0\.jsonl")):
        partial.append(partial.file_of(tmp_path), "identity", [{"id": "q"}])


class Words:
    """An encoder of random vectors."""

    identity, dim = "words", 4096

    def encode(self, texts, batch_size):
        return np.random.default_rng(0).random((len(texts), self.dim))


def test_a_full_disk_leaves_the_embeddings_before(tmp_path, monkeypatch):
    store = EmbeddingStore(Words(), tmp_path)
    store.fill(["a", "b"])
    with monkeypatch.context() as patched:
        patched.setattr(np, "save", full)
        with pytest.raises(OSError, match=NO_ROOM.format("shard-")):
            store.fill(["c"])
    again = EmbeddingStore(Words(), tmp_path)
    assert len(again) == 2
    assert again.fill(["a", "b", "c"]) == 1


@pytest.fixture
def small_disk(tmp_path):
    """A real file system of one megabyte, where that can be had."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no right to mount a small file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_is_really_full(small_disk):
    model = tiny.model(tiny.config())
    first = checkpoint.save(small_disk, 1, model, {"step": 1})
    with pytest.raises(OSError, match=NO_ROOM.format(r"step-000002 \(4\.\d MB\)")):
        checkpoint.save(small_disk, 2, model, {"optimizer": [torch.zeros(1_000_000)]})
    # The same without knowing the size beforehand, by each library that writes.
    for write in (
        lambda folder: torch.save(torch.zeros(1_000_000), folder / "trainer.pt"),
        lambda folder: checkpoint.save_file({"x": torch.zeros(1_000_000)}, folder / "x"),
        lambda folder: np.save(folder / "x.npy", np.zeros(1_000_000)),
        lambda folder: (folder / "x").write_bytes(b"x" * 2_000_000),
    ):
        with (
            pytest.raises(OSError, match=NO_ROOM.format("folder")),
            files.write_folder(small_disk / "folder") as part,
        ):
            write(part)
    with pytest.raises(OSError, match=NO_ROOM.format(r"metrics\.jsonl \(2\.0 MB\)")):
        files.append_text(small_disk / "metrics.jsonl", "x" * 2_000_000)
    (small_disk / "metrics.jsonl").unlink()
    with pytest.raises(OSError, match=NO_ROOM.format(r"predictions\.jsonl \(2\.0 MB\)")):
        files.write_text(small_disk / "predictions.jsonl", "x" * 2_000_000)
    assert [path.name for path in small_disk.iterdir()] == ["step-000001"]
    checkpoint.load(first, tiny.model(tiny.config()), base_name="")


def test_other_errors_are_not_taken_for_a_full_disk(tmp_path):
    for error in (OSError(errno.EIO, "bad sector"), RuntimeError("shapes differ")):
        with pytest.raises(type(error), match=str(error.args[-1])), files.room_for(tmp_path):
            raise error


def unloaded(*_, **__):
    raise AssertionError("something was loaded before")


@pytest.mark.parametrize("key", ["output_dir", "cache_dir"])
def test_a_folder_that_cannot_be_written_is_named_first(tmp_path, monkeypatch, key):
    (tmp_path / "file").write_text("")
    below = str(tmp_path / "file" / "folder")
    folders = {"output_dir": str(tmp_path / "out"), "cache_dir": str(tmp_path / "cache")}
    config = tiny.config(**{**folders, key: below}, prompt={"soft_prompt": False})
    for module in (training, evaluation):
        monkeypatch.setattr(module, "Preparation", unloaded)
    with pytest.raises(ValueError, match=rf"^{key}: .*file/folder.* cannot be written \(Not a dir"):
        training.run(config)
    out = Path(below) if key == "output_dir" else tmp_path / "answers"
    named = "--out" if key == "output_dir" else key
    with pytest.raises(ValueError, match=rf"^{named}: .*file/folder cannot be written"):
        evaluation.evaluate(config, out, run_dir=None)


def test_a_cache_that_can_only_be_read_is_a_warning(tmp_path, monkeypatch, caplog):
    def read_only(**_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(files.tempfile, "TemporaryFile", read_only)
    files.check_writable(tmp_path, "cache_dir", needed=False)
    assert "cannot be written (Read-only file system)" in caplog.text
    with pytest.raises(ValueError, match=r"output_dir: .*Read-only"):
        files.check_writable(tmp_path, "output_dir")
