"""One function over many shards: a shard that fails costs itself alone, wherever it runs."""

import importlib.util
import os
import signal
from pathlib import Path

import pytest

from bisrqa import sharding
from bisrqa.sharding import Shard, ShardsFailed

RAY = pytest.param(
    "ray",
    marks=[
        pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed"),
        pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning"),
        pytest.mark.slow,
    ],
)
ENGINES = ["local", "processes", RAY]


class Write:
    """Writes a file for each number; 13 is refused, -1 kills its process."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.seen = 0

    def __call__(self, number: int) -> None:
        self.seen += 1
        if number == 13:
            raise ValueError("13 is\nno number")
        if number == -1:
            os.kill(os.getpid(), signal.SIGKILL)
        (self.folder / str(number)).write_text(f"{os.getpid()} {self.seen}")


def shards(*numbers):
    return (Shard(f"shard-{n}", f"questions {n} to {n + 4}", n) for n in numbers)


def run(folder, engine, *numbers):
    workers = 1 if engine == "local" else 2
    return sharding.run(Write(folder), shards(*numbers), engine=engine, workers=workers)


def made(folder):
    return {int(file.name) for file in folder.iterdir()}


@pytest.mark.parametrize("engine", ENGINES)
def test_the_others_are_done_and_the_error_names_the_shard(tmp_path, engine):
    expected = (
        r"1 of 5 shards failed; the others are done and kept, and the same command goes on.*\n"
        r"  shard-13 \(questions 13 to 17\): ValueError: 13 is no number$"
    )
    with pytest.raises(ShardsFailed, match=expected):
        run(tmp_path, engine, 1, 13, 2, 3, 4)
    assert made(tmp_path) == {1, 2, 3, 4}
    assert run(tmp_path, engine, 5, 6) == 2
    here = {file.read_text().split()[0] == str(os.getpid()) for file in tmp_path.iterdir()}
    assert here == {engine == "local"}


@pytest.mark.parametrize("engine", ["processes", RAY])
def test_a_killed_worker_is_told_and_is_no_hang(tmp_path, engine):
    with pytest.raises(ShardsFailed, match=r"1 of 6 .*\n  shard--1 \(.*\): its process (was|died)"):
        run(tmp_path, engine, 1, 2, -1, 3, 4, 5)
    assert made(tmp_path) == {1, 2, 3, 4, 5}


def test_a_worker_keeps_what_it_has_loaded(tmp_path):
    sharding.run(Write(tmp_path), shards(1, 2, 3), engine="processes", workers=1)
    assert sorted(file.read_text().split()[1] for file in tmp_path.iterdir()) == ["1", "2", "3"]


def test_shards_are_taken_as_workers_become_free(tmp_path):
    taken = []

    def lazily():
        for shard in shards(*range(6)):
            taken.append(shard.name)
            if len(taken) > 3:
                assert made(tmp_path)  # something is done before the fourth is asked for
            yield shard

    sharding.run(Write(tmp_path), lazily(), engine="processes", workers=2)
    assert len(taken) == 6


def test_more_workers_than_an_engine_has_are_refused(tmp_path):
    with pytest.raises(ValueError, match="--workers 2 does not go with --engine local"):
        sharding.run(Write(tmp_path), shards(1), workers=2)
