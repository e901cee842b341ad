"""Running one function over many shards: in this process, in several, or by Ray.

A shard that fails costs itself alone: the others are finished first, then an error names it.
"""

import contextlib
import importlib
import logging
import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any, Literal, NamedTuple, cast

import torch
from tqdm import tqdm

logger = logging.getLogger(__name__)

Engine = Literal["local", "processes", "ray"]
Work = Callable[[Any], object]


class Shard(NamedTuple):
    """A piece of the work."""

    name: str
    questions: str
    """Which questions it holds, in words."""
    content: Any
    """What the function is called with."""


class Failure(NamedTuple):
    """Why a shard was not finished."""

    reason: str
    """In a line."""
    trace: str = ""
    """Where it happened, unless the reason is meant for whoever runs this."""


class ShardsFailed(ValueError):
    """Some shards failed; what the others made is kept."""


def run(
    work: Work,
    shards: Iterable[Shard],
    *,
    engine: Engine = "local",
    workers: int = 1,
    total: int | None = None,
    describe: str = "shards",
    progress: bool = False,
) -> int:
    """Call ``work`` with the content of every shard.

    Args:
        work: Can be pickled; each worker has its own copy and calls it again and again, so that it
            may keep what was slow to load. It writes what it makes: nothing is sent back.
        shards: Those that are still to be done; taken one by one as workers become free.
        engine: ``local`` is this process, one shard after another; ``processes`` spawns workers;
            ``ray`` (extra ``ray``) asks the cluster that RAY_ADDRESS names, or one of this machine.
        workers: How many shards are done at a time.
        total: How many shards there are, for the progress bar.
        describe: Names the work in the bar.
        progress: Show a bar with the time left.

    Returns:
        How many shards were done.

    Raises:
        ShardsFailed: Some failed; names each, its questions and the reason.
        ValueError: Settings without effect, or Ray is not there.
    """
    if workers < 1 or (workers > 1 and engine == "local"):
        raise ValueError(f"--workers {workers} does not go with --engine {engine}")
    failed: list[tuple[Shard, Failure]] = []
    done = 0
    with tqdm(total=total, desc=describe, unit="shard", disable=not progress) as bar:
        for shard, failure in ENGINES[engine](work, iter(shards), workers):
            if failure is None:
                done += 1
            else:
                failed.append((shard, failure))
                logger.error("%s failed: %s\n%s", shard.name, failure.reason, failure.trace)
            bar.update()
    if failed:
        lines = [f"  {s.name} ({s.questions}): {failure.reason}" for s, failure in failed]
        raise ShardsFailed(
            f"{len(failed)} of {done + len(failed)} shards failed; the others are done and kept, "
            "and the same command goes on with what is missing:\n" + "\n".join(lines)
        )
    return done


Outcomes = Iterator[tuple[Shard, Failure | None]]


def _attempt(work: Work, content: Any) -> Failure | None:
    try:
        work(content)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told in the end
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        told = isinstance(error, ValueError | OSError | MemoryError)
        return Failure(reason, "" if told else traceback.format_exc())
    return None


def _local(work: Work, shards: Iterator[Shard], workers: int) -> Outcomes:
    for shard in shards:
        yield shard, _attempt(work, shard.content)


def _processes(work: Work, shards: Iterator[Shard], workers: int) -> Outcomes:
    """Each worker has a pipe of its own, so that a dead one is known, with its shard."""
    context = multiprocessing.get_context("spawn")
    threads = max(1, (os.cpu_count() or 1) // workers)
    busy: dict[Connection, tuple[Any, Shard]] = {}
    idle: list[tuple[Connection, Any]] = []
    try:
        while True:
            while len(busy) < workers and (shard := next(shards, None)) is not None:
                if idle:
                    ours, process = idle.pop()
                else:
                    ours, theirs = context.Pipe()
                    process = context.Process(
                        target=_serve, args=(theirs, work, threads), daemon=True
                    )
                    process.start()
                    theirs.close()  # so that its death ends the pipe
                busy[ours] = (process, shard)
                with contextlib.suppress(BrokenPipeError):  # it died at once, which is told below
                    ours.send(shard.content)
            if not busy:
                return
            for ours in cast(list[Connection], wait(list(busy))):
                process, shard = busy.pop(ours)
                try:
                    failure = ours.recv()
                    idle.append((ours, process))
                except EOFError:
                    process.join()
                    failure = Failure(_death(process.exitcode))
                    ours.close()
                yield shard, failure
    finally:
        for ours, process in [*idle, *((ours, process) for ours, (process, _) in busy.items())]:
            ours.close()
            process.terminate()
            process.join()


def _serve(pipe: Connection, work: Work, threads: int) -> None:
    torch.set_num_threads(threads)
    while True:
        try:
            content = pipe.recv()
        except EOFError:
            return
        pipe.send(_attempt(work, content))


def _death(code: int | None) -> str:
    if code is not None and code < 0:
        return f"its process was killed by signal {-code} (is there enough memory?)"
    return f"its process ended with status {code}"


class _Worker:
    def __init__(self, work: Work):
        self._work = work

    def attempt(self, content: Any) -> Failure | None:
        return _attempt(self._work, content)


def _ray(work: Work, shards: Iterator[Shard], workers: int) -> Outcomes:
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError as error:
        raise ValueError("--engine ray needs ray: pip install 'bisrqa[ray]'") from error

    ours = not ray.is_initialized()
    if ours:
        here: dict[str, Any] = {}
        if "RAY_ADDRESS" not in os.environ:  # its workers find modules where this process does
            path = os.pathsep.join(entry or "." for entry in sys.path)
            environment = {"env_vars": {"PYTHONPATH": path}}
            here = {"num_cpus": workers, "include_dashboard": False, "runtime_env": environment}
        ray.init(logging_level=logging.ERROR, **here)
    try:
        actor = ray.remote(num_cpus=1, max_restarts=0)(_Worker)
        idle: list[Any] = []
        busy: dict[Any, tuple[Any, Shard]] = {}
        while True:
            while len(busy) < workers and (shard := next(shards, None)) is not None:
                worker = idle.pop() if idle else actor.remote(work)
                busy[worker.attempt.remote(shard.content)] = (worker, shard)
            if not busy:
                return
            ready, _ = ray.wait(list(busy), num_returns=1)
            worker, shard = busy.pop(ready[0])
            try:
                failure = ray.get(ready[0])
                idle.append(worker)
            except ray.exceptions.RayError as error:
                failure = Failure("its process died: " + " ".join(str(error).split())[:400])
            yield shard, failure
    finally:
        if ours:
            ray.shutdown()


ENGINES: dict[Engine, Callable[[Work, Iterator[Shard], int], Outcomes]] = {
    "local": _local,
    "processes": _processes,
    "ray": _ray,
}
