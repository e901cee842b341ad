"""The loop: it can stop anywhere, micro-batches add up, and it says when something is wrong."""

import json
from itertools import pairwise

import pytest
import tiny
import torch
from accelerate import Accelerator

from bisrqa import checkpoint, runs, training
from bisrqa.batches import Batches, parts
from bisrqa.config import untrained
from bisrqa.training import Trainer

STEPS = {
    "epochs": 8, "batch_size": 4, "batch_tokens": 500, "eval_every": 3, "patience": None,
    "learning_rate": 3e-3, "encoder_learning_rate": 3e-3,
}  # fmt: skip


def settings(tmp_path, name="run", training=(), **changes):
    """A run with dropout, so that random states matter."""
    parts = {
        "name": name,
        "output_dir": str(tmp_path),
        "training": {**STEPS, **dict(training)},
        "encoder": {**tiny.SIZES["encoder"], "dropout": 0.1},
        "generator": {**tiny.SIZES["generator"], "lora_dropout": 0.1},
    }
    return tiny.config(**{**parts, **changes})


def trainer(config):
    """A fresh process's view of a run."""
    torch.manual_seed(config.seed)
    model = tiny.model(config)
    examples = tiny.examples()
    runs.start(config, model.generator.fingerprint, examples, examples)
    prepared = model.prepare(examples)
    return Trainer(config, Accelerator(cpu=True), model, prepared, prepared[:4])


def log(config, key):
    lines = (config.run_dir / "metrics.jsonl").read_text().splitlines()
    return [(row["step"], row[key]) for row in map(json.loads, lines) if key in row]


class Killed(BaseException):
    """Stands for a power cut."""


@pytest.mark.parametrize("cut", [4, 5, 6])
def test_stopped_and_resumed_is_bit_for_bit_the_same(tmp_path, cut, monkeypatch):
    whole = settings(tmp_path, "whole", training={"max_steps": 8})
    trainer(whole).fit()
    broken = settings(tmp_path, "broken", training={"max_steps": 8})
    run = trainer(broken)
    update = run._update

    def dying():
        if run.step == cut:
            raise Killed
        return update()

    monkeypatch.setattr(run, "_update", dying)
    with pytest.raises(Killed):
        run.fit()
    with (broken.run_dir / "metrics.jsonl").open("a") as stream:
        stream.write('{"step": 99, "lo')  # a line that was cut off
    trainer(broken).fit()
    for key in ("loss", "gradient_norm", "learning_rate", "validation.strict.f1"):
        assert log(broken, key) == log(whole, key)
    for name in ("encoder.safetensors", "adapter/adapter_model.safetensors"):
        one, other = (c.run_dir / "step-000008" / name for c in (whole, broken))
        assert one.read_bytes() == other.read_bytes()


def test_a_run_that_died_before_it_named_the_best_step_does_so(tmp_path, monkeypatch):
    config = settings(tmp_path, training={"max_steps": 6})

    def dying(run_dir, folder):
        (run_dir / ".step-000009.x").mkdir()  # what a killed save leaves
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "set_best", dying)
        with pytest.raises(Killed):
            trainer(config).fit()
    assert not (config.run_dir / "best.txt").exists()
    run = trainer(config)
    run.fit()
    assert checkpoint.best(config.run_dir).name == f"step-{run.best_step:06d}"
    assert checkpoint.best(config.run_dir).is_dir()
    assert not list(config.run_dir.glob(".step-*"))


def test_a_finished_run_is_left_alone(tmp_path):
    config = settings(tmp_path, training={"max_steps": 1})
    assert not runs.is_finished(config)
    run = trainer(config)
    run.fit()
    runs.finish(config.run_dir, run.result())
    assert runs.is_finished(config)
    assert training.run(config) == config.run_dir


@pytest.mark.parametrize("soft", [True, False])
def test_the_parts_of_a_step_add_up_to_one_batch(tmp_path, soft):
    still = {"encoder": tiny.SIZES["encoder"], "generator": tiny.SIZES["generator"]}
    prompt = {**tiny.SIZES["prompt"], "soft_prompt": soft}
    results = []
    numbers = []
    for budget in (10_000, 500, 1):
        sizes = {"batch_size": 8, "batch_tokens": budget}
        config = settings(tmp_path, str(budget), training=sizes, prompt=prompt, **still)
        run = trainer(config)
        gradients, passes = [], []
        run.model.register_forward_pre_hook(lambda _, args, into=passes: into.append(len(args[0])))

        def clip(parameters, largest, into=gradients):
            into += [p.grad.flatten().clone() for p in parameters if p.grad is not None]
            return torch.cat(into).norm()

        run.accelerator.clip_grad_norm_ = clip
        loss, norm = run._update()
        results.append((loss, norm, torch.cat(gradients)))
        numbers.append(passes)
    assert numbers[0] == [8]
    assert 1 < len(numbers[1]) < 8
    assert numbers[2] == [1] * 8
    for loss, norm, gradient in results[1:]:
        assert loss == pytest.approx(results[0][0], rel=1e-5)
        assert norm == pytest.approx(results[0][1], rel=1e-4)
        assert torch.allclose(gradient, results[0][2], atol=1e-6, rtol=1e-4)


def test_it_learns_and_keeps_the_best_and_the_last(tmp_path):
    config = settings(tmp_path, training={"max_steps": 16, "eval_every": 4})
    run = trainer(config)
    run.fit()
    losses = [loss for _, loss in log(config, "loss")]
    assert sum(losses[-4:]) < 0.6 * sum(losses[:4])
    scores = log(config, "validation.strict.f1")
    assert [step for step, _ in scores] == list(range(2, 17, 2))  # an epoch has two steps
    best = max(scores, key=lambda row: (row[1], -row[0]))
    assert checkpoint.best(config.run_dir).name == f"step-{best[0]:06d}"
    kept = {folder.name for folder in checkpoint.steps(config.run_dir)}
    assert kept == {f"step-{best[0]:06d}", "step-000016"}
    assert run.result()["best_step"] == best[0]


def test_early_stopping_counts_validations_without_a_better_score(tmp_path):
    frozen = {"learning_rate": 1e-12, "encoder_learning_rate": 1e-12}
    config = settings(tmp_path, training={**frozen, "eval_every": 1, "patience": 2})
    run = trainer(config)
    run.fit()
    assert run.step == 3
    assert run.result()["stopped_early"]


def test_a_loss_that_is_not_finite_names_step_and_questions(tmp_path):
    run = trainer(settings(tmp_path))
    with torch.no_grad():
        run.model.encoder.to_words.scale.fill_(torch.nan)
    expected = r"step 1 is nan \(questions q\d, q\d, q\d\).* in .*failed/step-000000\. Look"
    with pytest.raises(FloatingPointError, match=expected):
        run.fit()
    assert checkpoint.steps(run.config.run_dir) == []
    (saved,) = checkpoint.steps(run.config.run_dir / training.FAILED)
    again = tiny.model(run.config)
    checkpoint.load(saved, again, base_name="tiny")
    assert torch.isnan(again.encoder.to_words.scale).all()
    state = checkpoint.load_trainer(saved)
    assert len(state["questions"]) == 3
    with pytest.raises(FloatingPointError, match=expected):  # saved once more, in its place
        run.fit()


@pytest.mark.parametrize(
    ("budget", "saving", "advice"),
    [
        (500, False, r"lower training\.batch_tokens \(now 500\), or set training\.gradient_check"),
        (1, True, r"1 questions of at most \d+ tokens before the answer: lower prompt\.max_prompt"),
    ],
)
def test_a_step_that_does_not_fit_says_what_to_change(tmp_path, budget, saving, advice):
    sizes = {"batch_tokens": budget, "gradient_checkpointing": saving}
    run = trainer(settings(tmp_path, training=sizes))

    def full(*_):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate")

    run.model.encoder.register_forward_hook(full)
    with pytest.raises(MemoryError, match=f"no memory left in step 1.*{advice}"):
        run.fit()


def test_other_errors_of_a_step_are_not_taken_for_want_of_memory(tmp_path):
    run = trainer(settings(tmp_path))

    def wrong(*_):
        raise RuntimeError("shapes differ")

    run.model.encoder.register_forward_hook(wrong)
    with pytest.raises(RuntimeError, match="shapes differ"):
        run.fit()


def test_nothing_to_train_is_an_error(tmp_path):
    prompt = {**tiny.SIZES["prompt"], "soft_prompt": False}
    generator = {**tiny.SIZES["generator"], "mode": "frozen"}
    with pytest.raises(ValueError, match="nothing to train"):
        trainer(settings(tmp_path, prompt=prompt, generator=generator))


def test_an_epoch_takes_every_question_once_and_each_step_stands_alone():
    batches = Batches(tiny.config(training=STEPS).training, 12, 1, 0)
    assert (batches.per_epoch, batches.total_steps) == (3, 24)
    for epoch in range(3):
        steps = [batches.indices(3 * epoch + k) for k in range(3)]
        assert all(len(step) == 4 for step in steps)
        assert sorted(i for step in steps for i in step) == list(range(12))
    assert batches.indices(4) == batches.indices(4)
    assert batches.indices(0) != batches.indices(3)


def test_fewer_questions_than_a_step_takes_still_train():
    batches = Batches(tiny.config(training=STEPS).training, 3, 1, 0)
    assert sorted(batches.indices(0)) == [0, 1, 2]


def test_processes_that_would_wait_for_each_other_are_refused():
    with pytest.raises(ValueError, match="5 processes share the 4 questions of a step"):
        Batches(tiny.config(training=STEPS).training, 9, 5, 0)
    assert Batches(tiny.config(training=STEPS).training, 9, 4, 0).per_step == 4


@pytest.mark.parametrize("processes", [1, 2, 3])
@pytest.mark.parametrize("budget", [1, 10, 30, 1000])
def test_parts_hold_every_row_once_and_keep_to_the_budget(processes, budget):
    lengths = [3, 9, 4, 9, 1, 7, 12, 5, 2, 8, 6]
    shared = [
        parts(lengths, budget, process=process, processes=processes) for process in range(processes)
    ]
    assert sorted(i for of in shared for part in of for i in part) == list(range(len(lengths)))
    for of in shared:
        for part in of:
            cost = len(part) * max(lengths[i] for i in part)
            assert cost <= budget or len(part) == 1
        in_turn = [lengths[i] for part in of for i in part]
        assert in_turn == sorted(in_turn, reverse=True)
    loads = [sum(lengths[i] for part in of for i in part) for of in shared]
    assert max(loads) - min(loads) <= max(lengths)
    assert parts([], budget) == []


def test_the_rate_warms_up_from_above_zero_and_ends_where_it_should(tmp_path):
    config = settings(tmp_path, training={"max_steps": 20, "warmup_ratio": 0.2, "epochs": 20})
    run = trainer(config)
    rates = [run._rate(step) for step in range(21)]
    assert rates[:5] == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])
    assert all(a >= b for a, b in pairwise(rates[4:]))
    assert rates[20] == pytest.approx(config.training.final_ratio)


def test_a_folder_of_other_settings_is_refused_by_key(tmp_path):
    trainer(settings(tmp_path))
    memory = {"batch_tokens": 3, "gradient_checkpointing": True}
    runs.is_finished(settings(tmp_path, evaluation={"batch_tokens": 3}, training=memory))
    with pytest.raises(ValueError, match=r"retriever\.top_k: 20 there, 5 here.*--name"):
        runs.is_finished(settings(tmp_path, retriever={"top_k": 5}))


def test_a_run_begun_on_other_data_is_refused(tmp_path):
    config = settings(tmp_path)
    trainer(config)
    with pytest.raises(ValueError, match="was begun with data"):
        runs.start(config, tiny.model(config).generator.fingerprint, tiny.examples()[1:], [])


def test_wandb_offline_needs_no_account(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = settings(tmp_path, tracker={"wandb": "offline"}, training={"max_steps": 1})
    accelerator = training._accelerator(config)
    accelerator.log({"loss": 1.0}, step=1)
    accelerator.end_training()
    assert list(config.run_dir.rglob("*.wandb"))


def test_a_ranker_without_soft_tokens_is_left_alone_and_saved(tmp_path):
    prompt = {"soft_prompt": False, "order": "attention"}
    config = settings(tmp_path, prompt=prompt, training={"max_steps": 3, "encoder_epochs": 1})
    run = trainer(config)
    before = {k: v.clone() for k, v in run.model.encoder.state_dict().items()}
    run.fit()
    torch.manual_seed(1)
    again = tiny.model(config)  # with other weights
    checkpoint.load(checkpoint.steps(config.run_dir)[-1], again, base_name="")
    for model in (run.model, again):
        for key, value in model.encoder.state_dict().items():
            assert torch.equal(value, before[key]), key


def test_what_needs_learning_is_left_out_of_the_untrained_model():
    """Each such setting on its own, so that a trained run can always be set beside its base."""
    learnt = (
        ({}, {"encoder_epochs": 1}),
        ({"order": "attention"}, {}),
        ({}, {"attention_weight": 1.0}),
    )
    for prompt, passes in learnt:
        config = tiny.config(prompt=prompt, training=passes)
        plain = untrained(config)
        assert not plain.prompt.soft_prompt
        assert plain.prompt.order == "score"
        assert untrained(plain) == plain
    assert untrained(tiny.config(prompt={"order": "random"})).prompt.order == "random"
