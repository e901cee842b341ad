"""The training loop: one process or many, from nothing or from where it stopped."""

import contextlib
import hashlib
import importlib.metadata
import logging
import math
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs, gather_object, set_seed
from torch import nn
from tqdm import tqdm

from bisrqa import (
    checkpoint,
    encoder_training,
    generator,
    memory,
    metrics,
    parallel,
    runs,
    steps,
)
from bisrqa.answering import answer
from bisrqa.batches import Batches
from bisrqa.config import RunConfig, TrainingConfig, to_dict
from bisrqa.files import check_writable
from bisrqa.model import BiSRQA, Prepared
from bisrqa.packaged import default_cache_dir
from bisrqa.prepare import Chosen, Preparation
from bisrqa.steps import Part, Step, Steps

logger = logging.getLogger(__name__)

FAILED = "failed"
"""Below a run's folder: the weights that gave a loss that was no number."""


def run(config: RunConfig) -> Path:
    """Train, or go on with the run of that name.

    Returns:
        The run's folder.

    Raises:
        ValueError: The folder holds another run, or the data cannot be used.
        FloatingPointError: The loss is not finite; names the step, the questions, and the folder
            where the weights that gave it are.
        MemoryError: A step does not fit; says what to change.
    """
    if runs.is_finished(config):
        logger.info("%s is trained already", config.run_dir)
        return config.run_dir
    accelerator = _accelerator(config)
    sharded = parallel.of(accelerator, config.generator).sharded
    started = time.perf_counter()
    cache_dir = Path(config.cache_dir) if config.cache_dir else default_cache_dir()
    check_writable(config.run_dir, "output_dir")
    check_writable(cache_dir, "cache_dir", needed=False)
    main, data = accelerator.is_main_process, config.data
    device = str(accelerator.device)
    # Going on, with the retriever of then.
    retrieving = runs.with_retriever(config, config.run_dir)
    preparation = Preparation(retrieving, cache_dir, device=device, progress=main)
    with accelerator.main_process_first():  # the others find what it makes
        train = preparation.examples(data.train_split, data.train_limit)
        valid = preparation.examples(data.validation_split, config.training.validation_limit)
    if shared := {h.id for h in train.headings} & {h.id for h in valid.headings}:
        raise ValueError(
            f"{len(shared)} questions are both in {data.train_split} and in "
            f"{data.validation_split}, e.g. {min(shared)!r}"
        )
    for name, split in ((data.train_split, train), (data.validation_split, valid)):
        if not split:
            raise ValueError(f"split {name!r} has no questions that can be used")
    # Only now: filling the embedding cache draws random numbers, finding it full does not.
    set_seed(config.seed)
    llm = generator.load(config.generator, cache_dir, device=accelerator.device)
    model = BiSRQA(config, llm, dim=train.dim)
    if config.training.gradient_checkpointing:
        llm.checkpoint_activations()
    if main:
        runs.start(config, llm.fingerprint, train.headings, valid.headings)
    with accelerator.main_process_first():
        prepared, watched = (preparation.tokenised(some, model.builder) for some in (train, valid))
    teachable = Chosen(prepared, [n for n, h in enumerate(train.headings) if h.can_be_taught])
    if left_out := len(train) - len(teachable):
        logger.warning("%d training questions have no gold that can be written", left_out)
    if config.training.encoder_epochs and not checkpoint.steps(config.run_dir):
        # Every process does the same; where devices differ, the first one's weights are taken.
        # A model in shards is whole only on the CPU, where MAIF alone learns in seconds, too.
        taught = model if sharded else model.to(accelerator.device)
        encoder_training.run(taught, teachable, config, progress=main)
        set_seed(config.seed)
    trainer = Trainer(config, accelerator, model, teachable, watched)
    set_seed(config.seed, device_specific=True)  # dropout differs between processes
    trainer.fit()
    if main:
        seconds = round(time.perf_counter() - started, 1)  # of this start, if there were several
        cost = {"seconds": seconds, "peak_memory_bytes": memory.peak_bytes(accelerator.device)}
        runs.finish(config.run_dir, trainer.result() | cost)
    del trainer
    leave(accelerator)
    return config.run_dir


def leave(accelerator: Accelerator) -> None:
    """End a run of several processes: all together, with nothing that still holds their group.

    A process that leaves while another is writing, or whose wrapped model outlives the group, may
    abort on its way out, after all of its work is done.
    """
    accelerator.wait_for_everyone()
    accelerator.free_memory()
    accelerator.end_training()


class Trainer:
    """Everything that changes while a model is trained.

    Args:
        config: ``training``, ``seed``, ``name`` and the run's folder are read.
        accelerator: Devices and processes.
        model: On any device.
        train: Questions with a target each.
        valid: Questions that early stopping looks at.
    """

    def __init__(
        self,
        config: RunConfig,
        accelerator: Accelerator,
        model: BiSRQA,
        train: Sequence[Prepared],
        valid: Sequence[Prepared],
    ):
        if not train or not valid:
            raise ValueError(
                f"both are needed: {len(train)} training and {len(valid)} validation questions"
            )
        if model.encoder is not None and not config.prompt.soft_prompt:
            model.encoder.requires_grad_(False)  # it only orders the triples, and has learnt to
        if not any(p.requires_grad for p in model.parameters()):
            raise ValueError(
                "nothing to train: generator.mode is frozen and prompt.soft_prompt is false"
            )
        self.config, self.settings, self.accelerator = config, config.training, accelerator
        self.train, self.valid = train, valid
        self.batches = Batches(self.settings, len(train), accelerator.num_processes, config.seed)
        self.model, self.spread = model, parallel.of(accelerator, config.generator)
        # Weights are put in before they are spread over processes, so that a run may go on in any
        # number of them.
        self.saved = next(reversed(checkpoint.steps(config.run_dir)), None)
        if self.saved is not None:
            checkpoint.load(self.saved, model, base_name=config.generator.model)
        self.wrapped, self.optimizer = self.spread.prepare(
            model, lambda model: torch.optim.AdamW(_groups(model, self.settings))
        )
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self._rate)
        # An epoch always ends with a look at the score, also where many devices make it short.
        self.eval_every = min(self.settings.eval_every, self.batches.per_epoch)
        self.steps = Steps(
            config, train, self.batches, model.collate,
            process=accelerator.process_index, processes=accelerator.num_processes,
        )  # fmt: skip
        self._feed: Iterator[Step] | None = None
        self.step = 0
        self.best_score, self.best_step, self.worse = -1.0, 0, 0

    def fit(self) -> None:
        """Train to the end, validating and saving on the way."""
        main, total = self.accelerator.is_main_process, self.batches.total_steps
        if self.config.generator.max_new_tokens < self.config.prompt.max_answer_tokens and main:
            logger.warning(
                "generator.max_new_tokens %d is below prompt.max_answer_tokens %d: "
                "long lists are taught that no reply can finish",
                self.config.generator.max_new_tokens,
                self.config.prompt.max_answer_tokens,
            )
        self._resume()
        patience = self.settings.patience
        stopped = patience is not None and self.worse >= patience
        self.model.train()
        bar = tqdm(
            total=total, initial=self.step, desc="training", unit="step", disable=not main
        )  # fmt: skip
        with bar, steps.explained(self.settings.workers), contextlib.ExitStack() as ending:
            ending.callback(self._end_feed)
            while self.step < total and not stopped:
                started, rate = time.perf_counter(), self._rate(self.step)
                loss, norm = self._update()
                self._log(
                    {
                        "epoch": self.batches.epoch(self.step - 1),
                        "loss": loss,
                        "gradient_norm": norm,
                        "learning_rate": rate * self.settings.learning_rate,
                        "encoder_learning_rate": rate * self.settings.encoder_learning_rate,
                        "seconds": round(time.perf_counter() - started, 3),
                    }
                )
                bar.set_postfix(loss=f"{loss:.3f}")
                bar.update()
                if self.step % self.eval_every == 0 or self.step == total:
                    self._validate()
                    stopped = patience is not None and self.worse >= patience

    def result(self) -> dict[str, Any]:
        """How the training went."""
        return {
            "steps": self.step,
            "stopped_early": self.step < self.batches.total_steps,
            "best_step": self.best_step,
            f"validation.{self.settings.select_by}": self.best_score,
        }

    def _update(self) -> tuple[float, float]:
        """One optimizer step, in parts; equal to one step over all questions at once."""
        world, weight = self.accelerator.num_processes, self.settings.attention_weight
        count, mine = self._next_step()
        total = torch.zeros((), device=self.accelerator.device)
        passes = self.spread.most(len(mine))
        for number in range(passes):
            # While others that it has to keep up with have parts left, it takes its last one again.
            part = mine[min(number, len(mine) - 1)]
            with (
                # Gradients are exchanged only behind the last part.
                self.spread.waits(self.wrapped, number + 1 < passes),
                memory.explained(partial(self._too_large, part)),
            ):
                loss = self.wrapped(part.batch, None, weight) / count
                loss = loss * (number < len(mine))
                self._check_finite(loss, part.ids)
                # Processes average their gradients: times world, it is the sum over the batch.
                self.accelerator.backward(loss * world)
            total += loss.detach()
        norm = self.spread.clip(self.wrapped, self.settings.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.schedule.step()
        self.step += 1
        summed = cast(torch.Tensor, self.accelerator.reduce(total, "sum"))
        return summed.item(), norm

    def _next_step(self) -> Step:
        if self._feed is None:
            pin, workers = self.accelerator.device.type == "cuda", self.settings.workers
            self._feed = steps.feed(self.steps, self.step, workers=workers, pin=pin)
        return next(self._feed)

    def _end_feed(self) -> None:
        """End the workers; the next step would come from new ones."""
        self._feed = None

    def _check_finite(self, loss: torch.Tensor, ids: list[str]) -> None:
        bad = not torch.isfinite(loss)
        if self.spread.any(bad):
            found = [(name, loss.item()) for name in ids if bad]
            found = gather_object(found) if self.spread.sharded else found
            ids, value = [name for name, _ in found], found[0][1]
            state = {"step": self.step, "questions": ids, "loss": value}
            folder = self._written(self.config.run_dir / FAILED, state)
            raise FloatingPointError(
                f"the loss of step {self.step + 1} is {value} (questions {', '.join(ids)}); "
                f"the weights that gave it are in {folder}. Look at these questions, or try a "
                "lower training.learning_rate and encoder_learning_rate under another --name"
            )

    def _too_large(self, part: Part) -> str:
        several = f"lower training.batch_tokens (now {self.settings.batch_tokens})"
        advice = [several] if len(part.ids) > 1 else ["lower prompt.max_prompt_tokens"]
        if not self.settings.gradient_checkpointing:
            advice.append("set training.gradient_checkpointing to true")
        return (
            f"no memory left in step {self.step + 1}, for {len(part.ids)} questions of at most "
            f"{part.longest} tokens before the answer: {', or '.join(advice)}"
        )

    def _rate(self, step: int) -> float:
        """Linear warm-up, then a cosine down to ``final_ratio``; never 0 on the first step."""
        total = self.batches.total_steps
        warmup = max(1, round(self.settings.warmup_ratio * total))
        if step < warmup:
            return (step + 1) / warmup
        done = min(1.0, (step - warmup) / max(1, total - warmup))
        final = self.settings.final_ratio
        return final + (1 - final) * 0.5 * (1 + math.cos(math.pi * done))

    def _validate(self) -> None:
        """Score generated answers and save."""
        main = self.accelerator.is_main_process
        mine = range(
            self.accelerator.process_index, len(self.valid), self.accelerator.num_processes
        ) or range(1)  # a process without a question may have to take part
        answered = answer(
            self.model,
            Chosen(self.valid, mine),
            batch_tokens=self.config.evaluation.batch_tokens,
            progress=main,
            describe=f"validating step {self.step}",
        )
        replies = [(mine[reply.place], reply.text) for batch in answered for reply in batch]
        texts = dict(gather_object(replies))
        panel = metrics.panel(
            {"prediction": texts[i], "ground_truth": list(prepared.example.question.answers)}
            for i, prepared in enumerate(self.valid)
        )
        self._log({f"validation.{key}": value for key, value in panel.items()})
        score = float(panel[self.settings.select_by])
        if score > self.best_score:
            self.best_score, self.best_step, self.worse = score, self.step, 0
        else:
            self.worse += 1
        self._save()
        if main:
            logger.info(
                "step %d: validation %s %.2f (best %.2f)",
                self.step,
                self.settings.select_by,
                score,
                self.best_score,
            )

    def _save(self) -> None:
        states = gather_object([_random_state()])
        main = self.accelerator.is_main_process
        if not main and not self.spread.sharded:
            return
        schedule = self.schedule.state_dict()
        state = {
            "step": self.step,
            "best_score": self.best_score,
            "best_step": self.best_step,
            "worse": self.worse,
            "optimizer": self.spread.optimizer_state(self.optimizer),
            "schedule": {k: v for k, v in schedule.items() if k != "lr_lambdas"},
            "random": states,
        }
        run_dir = self.config.run_dir
        folder = self._written(run_dir, state)
        if not main:
            return
        if self.best_step == self.step:
            checkpoint.set_best(run_dir, folder)
        checkpoint.keep_only(run_dir, {folder.name, checkpoint.best(run_dir).name})

    def _written(self, run_dir: Path, state: dict[str, Any]) -> Path:
        """A step folder; in shards all processes gather, and the first one writes."""
        write = self.accelerator.is_main_process or not self.spread.sharded
        with self.spread.trained(self.model):
            return checkpoint.save(run_dir, self.step, self.model, state, write=write)

    def _resume(self) -> None:
        run_dir = self.config.run_dir
        if self.accelerator.is_main_process:
            checkpoint.sweep(run_dir)
        self.accelerator.wait_for_everyone()
        if self.saved is not None:
            state = checkpoint.load_trainer(self.saved)
            self.step, self.worse = state["step"], state["worse"]
            self.best_score, self.best_step = state["best_score"], state["best_step"]
            self.spread.load_optimizer(self.optimizer, state["optimizer"])
            self.schedule.load_state_dict({**self.schedule.state_dict(), **state["schedule"]})
            if len(state["random"]) == self.accelerator.num_processes:
                _set_random_state(state["random"][self.accelerator.process_index])
            else:
                logger.warning("the run had %d processes: dropout differs", len(state["random"]))
            if self.best_step == self.step and self.accelerator.is_main_process:
                checkpoint.set_best(run_dir, self.saved)  # the run may have died before it did
            logger.info("going on from step %d", self.step)
        if self.accelerator.is_main_process:
            runs.cut_log(run_dir, self.step)

    def _log(self, values: dict[str, Any]) -> None:
        if self.accelerator.is_main_process:
            runs.append_log(self.config.run_dir, {"step": self.step, **values})
            if self.accelerator.trackers:
                self.accelerator.log(values, step=self.step)


def _accelerator(config: RunConfig) -> Accelerator:
    full_on_gpu = config.generator.mode == "full" and torch.cuda.is_available()
    tracked = config.tracker.wandb != "disabled"
    if tracked:
        try:
            importlib.metadata.version("wandb")
        except importlib.metadata.PackageNotFoundError as error:
            raise ValueError("tracker.wandb needs wandb: pip install 'bisrqa[wandb]'") from error
    accelerator = Accelerator(
        mixed_precision="bf16" if full_on_gpu else "no",
        log_with="wandb" if tracked else None,
        # The first process fills the embedding cache while the others wait.
        kwargs_handlers=[InitProcessGroupKwargs(timeout=timedelta(hours=24))],
    )
    if tracked:
        config.run_dir.mkdir(parents=True, exist_ok=True)
        options = {
            "mode": config.tracker.wandb,
            "name": config.name,
            "group": config.tracker.group,
            "dir": str(config.run_dir),
            # A run that goes on adds to its own curves.
            "id": hashlib.sha256(str(config.run_dir.resolve()).encode()).hexdigest()[:12],
            "resume": "allow",
        }
        accelerator.init_trackers(config.tracker.project, to_dict(config), {"wandb": options})
    return accelerator


def _groups(model: BiSRQA, settings: TrainingConfig) -> list[dict[str, Any]]:
    """Parameter groups: MAIF and language model have rates of their own; only matrices decay."""
    parts: list[tuple[nn.Module | None, float]] = [
        (model.encoder, settings.encoder_learning_rate),
        (model.generator, settings.learning_rate),
    ]
    groups = []
    for part, rate in parts:
        trained = [p for p in part.parameters() if p.requires_grad] if part is not None else []
        for matrices, decay in ((True, settings.weight_decay), (False, 0.0)):
            chosen = [p for p in trained if (p.ndim >= 2) == matrices]
            if chosen:
                groups.append({"params": chosen, "lr": rate, "weight_decay": decay})
    return groups


def _random_state() -> dict[str, Any]:
    state: dict[str, Any] = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def _set_random_state(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
