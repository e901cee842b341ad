"""Steps made in other processes are the same to the last bit, and a dead one is told."""

import json
import multiprocessing
import os
import signal

import pytest
import tiny
import torch
from accelerate import Accelerator

from bisrqa import evaluation, runs, shards, steps
from bisrqa.answering import answer
from bisrqa.prepare import Chosen, Examples, Preparation, Tokenised
from bisrqa.training import Trainer

ORDERS = [{}, {"order": "attention"}, {"soft_prompt": False}]


def settings(tmp_path, name, workers=0, prompt=(), **training):
    return tiny.config(
        name=name,
        output_dir=str(tmp_path),
        encoder={**tiny.SIZES["encoder"], "dropout": 0.1},
        generator={**tiny.SIZES["generator"], "lora_dropout": 0.1},
        prompt={**tiny.SIZES["prompt"], **dict(prompt)},
        training={
            "batch_size": 4, "batch_tokens": 500, "max_steps": 4, "epochs": 9, "eval_every": 2,
            "patience": None, "workers": workers, **training,
        },
    )  # fmt: skip


def trainer(config, prepared=None):
    torch.manual_seed(config.seed)
    model, examples = tiny.model(config), tiny.examples()
    runs.start(config, model.generator.fingerprint, examples, examples)
    prepared = model.prepare(examples) if prepared is None else prepared
    return Trainer(config, Accelerator(cpu=True), model, prepared, prepared[:4])


def log(run):
    lines = (run.config.run_dir / "metrics.jsonl").read_text().splitlines()
    return [{**json.loads(line), "seconds": 0} for line in lines]


def on_disk(tmp_path, config) -> Tokenised:
    """The eight examples in two shards."""
    folder, examples = tmp_path / "split", tiny.examples()
    for number in range(2):
        some = examples[4 * number : 4 * number + 4]
        facts = {
            "first": 4 * number, "seconds": {}, "lacking": {}, "bad_replies": 0,
            "headings": [
                [e.question.id, e.source_digest.hex(), e.golds_in_evidence, True] for e in some
            ],
        }  # fmt: skip
        shards.write(folder / f"shard-{number:05d}", some, **facts)
    (folder / "split.json").write_text('{"shards": 2, "questions": 8}')
    builder = tiny.model(config).builder
    return Preparation(config, tmp_path).tokenised(Examples(folder), builder)


@pytest.mark.parametrize("prompt", ORDERS)
def test_losses_from_shards_are_those_from_memory(tmp_path, prompt):
    held = trainer(settings(tmp_path, "held", prompt=prompt))
    held.fit()
    config = settings(tmp_path, "read", prompt=prompt)
    read = trainer(config, on_disk(tmp_path, config))
    read.fit()
    assert log(read) == log(held)


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_losses_are_the_same_with_any_number_of_workers(tmp_path, weight):
    logs = []
    for workers in (0, 1, 2):
        config = settings(tmp_path, str(workers), workers, attention_weight=weight)
        run = trainer(config, on_disk(tmp_path, config))
        run.fit()
        logs.append(log(run))
    assert logs[0] == logs[1] == logs[2]
    assert len(logs[0]) == 6


def test_a_run_that_goes_on_has_workers_too_and_attention_may_order(tmp_path):
    order = {"order": "attention"}
    whole = trainer(settings(tmp_path, "whole", prompt=order))
    whole.fit()
    first = trainer(settings(tmp_path, "parts", 1, prompt=order))
    update = first._update

    def stop():
        if first.step == 2:
            raise KeyboardInterrupt
        return update()

    first._update = stop
    with pytest.raises(KeyboardInterrupt):
        first.fit()
    second = trainer(settings(tmp_path, "parts", 1, prompt=order))
    second.fit()
    assert log(second) == log(whole)


def test_a_worker_that_is_killed_is_told(tmp_path, monkeypatch):
    config = settings(tmp_path, "killed", 1)
    run = trainer(config)
    killed = []
    update = run._update

    def killing():
        done = update()
        if not killed:
            (worker,) = multiprocessing.active_children()
            killed.append(worker.pid)
            os.kill(worker.pid, signal.SIGKILL)
        return done

    monkeypatch.setattr(run, "_update", killing)
    with pytest.raises(ChildProcessError, match=r"training\.workers \(now 1\) died.*goes on from"):
        run.fit()


def test_what_is_not_a_dead_worker_passes():
    with pytest.raises(RuntimeError, match="shapes differ"), steps.explained(1):
        raise RuntimeError("shapes differ")


def test_a_trainer_reads_a_step_when_it_needs_it(tmp_path):
    config = settings(tmp_path, "lazy")
    found = on_disk(tmp_path, config)
    reads = []

    class Counted(Chosen):
        def __getitem__(self, place):
            if not isinstance(place, slice):
                reads.append(place)
            return super().__getitem__(place)

    run = trainer(config, Counted(found, range(len(found))))
    before = len(reads)  # the type checks of the tests look at one or two
    assert before < 8
    run._update()
    assert len(reads) - before < 8


def test_records_of_an_evaluation_are_the_same_from_shards(tmp_path):
    config = settings(tmp_path, "answers")
    model = tiny.model(config)
    records = []
    for questions in (model.prepare(tiny.examples()), on_disk(tmp_path, config)):
        replies = [r for b in answer(model, questions, batch_tokens=500) for r in b]
        some = [evaluation._record(model, [questions[r.place]], r, {}) for r in replies]
        records.append([{**r, "seconds": 0, "latency": 0} for r in some])
    assert records[0] == records[1]
    assert len(records[0]) == 8
