"""The training loop: one process or many, from nothing or from where it stopped."""

import contextlib
import hashlib
import importlib.metadata
import json
import logging
import math
import platform
import random
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
import yaml
from accelerate import Accelerator
from accelerate.utils import gather_object, set_seed
from torch import nn
from tqdm import tqdm

from bisrqa import checkpoint, examples, generator, metrics
from bisrqa.answering import answer
from bisrqa.config import RunConfig, TrainingConfig, to_dict, to_yaml
from bisrqa.examples import Example
from bisrqa.files import write_text
from bisrqa.model import BiSRQA, Prepared
from bisrqa.packaged import default_cache_dir

logger = logging.getLogger(__name__)

# Settings that may change between the start of a run and its continuation.
FREE = ("evaluation", "tracker", "output_dir", "cache_dir")


def run(config: RunConfig) -> Path:
    """Train, or go on with the run of that name.

    Returns:
        The run's folder.

    Raises:
        ValueError: The folder holds a run with other settings, or the data cannot be used.
        FloatingPointError: The loss is not finite; names the step and the questions.
    """
    accelerator = _accelerator(config)
    run_dir = config.run_dir
    if _claim(config, accelerator):
        logger.info("%s is finished; training is not repeated", run_dir)
        return run_dir
    set_seed(config.seed)
    cache_dir = Path(config.cache_dir) if config.cache_dir else default_cache_dir()
    main = accelerator.is_main_process
    with accelerator.main_process_first():  # the others find its embeddings in the cache
        retriever = examples.Retriever(config, cache_dir, device=accelerator.device, progress=main)
        limit = config.training.validation_limit
        train = examples.load(
            config, config.data.train_split, retriever, limit=config.data.train_limit
        )
        valid = examples.load(config, config.data.validation_split, retriever, limit=limit)
    llm = generator.load(config.generator, cache_dir, device=accelerator.device)
    model = BiSRQA(config, llm, dim=retriever.dim)
    if not any(p.requires_grad for p in model.parameters()):
        raise ValueError(
            "nothing to train: generator.mode is frozen and prompt.soft_prompt is false"
        )
    if config.training.gradient_checkpointing:
        llm.checkpoint_activations()
    if main:
        write_text(
            run_dir / checkpoint.RUN,
            json.dumps(_facts(config, llm.fingerprint, train, valid), indent=1) + "\n",
        )
    trainer = Trainer(config, accelerator, model, _teachable(model, train), model.prepare(valid))
    trainer.fit()
    accelerator.end_training()
    return run_dir


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
                f"{len(train)} training and {len(valid)} validation questions: both are needed"
            )
        self.config, self.settings, self.accelerator = config, config.training, accelerator
        self.train, self.valid = train, valid
        self.batch = Batches(self.settings, len(train), accelerator.num_processes, config.seed)
        optimizer = torch.optim.AdamW(_groups(model, self.settings))
        self.model = model
        self.wrapped, self.optimizer = accelerator.prepare(model, optimizer)
        # Not prepared: accelerate would step it once a process.
        self.schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, self._rate)
        self.step = 0
        self.best_score, self.best_step, self.worse = -1.0, 0, 0

    def fit(self) -> None:
        """Train to the end, validating and saving on the way."""
        settings, total = self.settings, self.batch.total_steps
        self._resume()
        bar = tqdm(
            total=total, initial=self.step, desc="training", unit="step",
            disable=not self.accelerator.is_main_process,
        )  # fmt: skip
        self.model.train()
        stopped = False
        with bar:
            while self.step < total and not stopped:
                started = time.perf_counter()
                loss, norm = self._update()
                seconds = time.perf_counter() - started
                self._log({
                    "step": self.step, "epoch": self.batch.epoch(self.step - 1), "loss": loss, "gradient_norm": norm,
                    "learning_rate": self.schedule.get_last_lr()[0], "seconds": round(seconds, 3),
                })  # fmt: skip
                bar.set_postfix(loss=f"{loss:.3f}")
                bar.update()
                if self.step % settings.eval_every == 0 or self.step == total:
                    stopped = self._validate()
        self._finish(stopped)

    def _update(self) -> tuple[float, float]:
        """One optimizer step over its micro-batches; equal to one step over all of them at once."""
        epoch = self.batch.epoch(self.step)
        micro = self.batch.indices(self.step)
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        chosen = [[self.train[i] for i in rows] for rows in micro]
        # Every process makes all targets: their number weighs the loss, and text is cheap.
        targets = [
            self.model.targets(
                rows,
                [
                    random.Random(f"{self.config.seed}/{epoch}/{p.example.question.id}")
                    for p in rows
                ],
            )
            for rows in chosen
        ]
        count = sum(len(target) for rows in targets for target in rows)
        mine = range(rank, len(micro), world)
        total = torch.zeros((), device=self.accelerator.device)
        for k in mine:
            last = k == mine[-1]
            with self._sync(last):
                # Processes average their gradients: times world, their sum is the whole batch's.
                loss = self.wrapped(chosen[k], targets[k]) / count
                self._check_finite(loss, chosen[k])
                self.accelerator.backward(loss * world)
            total += loss.detach()
        norm = self.accelerator.clip_grad_norm_(self.wrapped.parameters(), self.settings.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.schedule.step()
        self.step += 1
        summed = cast(torch.Tensor, self.accelerator.reduce(total, "sum"))
        return summed.item(), float(cast(torch.Tensor, norm))

    def _sync(self, last: bool):
        """Exchange gradients only behind the last micro-batch."""
        return contextlib.nullcontext() if last else self.accelerator.no_sync(self.wrapped)

    def _check_finite(self, loss: torch.Tensor, batch: Sequence[Prepared]) -> None:
        if not torch.isfinite(loss):
            ids = ", ".join(p.example.question.id for p in batch)
            raise FloatingPointError(
                f"the loss of step {self.step + 1} is {float(loss)} (questions {ids})"
            )

    def _rate(self, step: int) -> float:
        """Linear warm-up, then a cosine down to ``final_ratio``; the first step has a rate above 0."""
        warmup = max(1, round(self.settings.warmup_ratio * self.batch.total_steps))
        if step < warmup:
            return (step + 1) / warmup
        done = (step - warmup) / max(1, self.batch.total_steps - warmup)
        final = self.settings.final_ratio
        return final + (1 - final) * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))

    def _validate(self) -> bool:
        """Score generated answers, save, and say whether to stop."""
        accelerator = self.accelerator
        mine = list(range(accelerator.process_index, len(self.valid), accelerator.num_processes))
        batches = answer(
            self.model, [self.valid[i] for i in mine], batch_size=self.config.evaluation.batch_size,
            progress=accelerator.is_main_process, describe=f"validating step {self.step}",
        )  # fmt: skip
        replies = [(mine[reply.place], reply.text) for batch in batches for reply in batch]
        texts = dict(gather_object(replies))
        records = [
            {"prediction": texts[i], "ground_truth": list(self.valid[i].example.question.answers)}
            for i in range(len(self.valid))
        ]
        panel = metrics.panel(records)
        self._log({"step": self.step, **{f"validation.{k}": v for k, v in panel.items()}})
        score = float(panel[self.settings.select_by])
        if score > self.best_score:
            self.best_score, self.best_step, self.worse = score, self.step, 0
        else:
            self.worse += 1
        self._save()
        self.model.train()
        patience = self.settings.patience
        logger.info(
            "step %d: %s %.2f (best %.2f)",
            self.step,
            self.settings.select_by,
            score,
            self.best_score,
        )
        return patience is not None and self.worse >= patience

    def _save(self) -> None:
        rng = gather_object([_random_state()])
        if not self.accelerator.is_main_process:
            return
        state = {
            "step": self.step, "best_score": self.best_score, "best_step": self.best_step, "worse": self.worse,
            "optimizer": self.optimizer.state_dict(), "schedule": self.schedule.state_dict(), "random": rng,
        }  # fmt: skip
        state["schedule"] = {k: v for k, v in state["schedule"].items() if k != "lr_lambdas"}
        run_dir = self.config.run_dir
        folder = checkpoint.save(run_dir, self.step, self.model, state)
        if self.best_step == self.step:
            checkpoint.set_best(run_dir, folder)
        checkpoint.keep_only(run_dir, {folder.name, checkpoint.best(run_dir).name})

    def _resume(self) -> None:
        run_dir = self.config.run_dir
        saved = checkpoint.steps(run_dir)
        if saved:
            checkpoint.load(saved[-1], self.model, base_name=self.config.generator.model)
            state = checkpoint.load_trainer(saved[-1])
            self.step = state["step"]
            self.best_score, self.best_step, self.worse = (
                state["best_score"],
                state["best_step"],
                state["worse"],
            )
            self.optimizer.load_state_dict(state["optimizer"])
            self.schedule.load_state_dict({**self.schedule.state_dict(), **state["schedule"]})
            if len(state["random"]) == self.accelerator.num_processes:
                _set_random_state(state["random"][self.accelerator.process_index])
            else:
                logger.warning(
                    "the run had %d processes: dropout will differ", len(state["random"])
                )
            logger.info("going on from step %d", self.step)
        if self.accelerator.is_main_process:
            _cut_log(run_dir / checkpoint.METRICS, self.step)

    def _log(self, values: dict[str, Any]) -> None:
        if not self.accelerator.is_main_process:
            return
        with (self.config.run_dir / checkpoint.METRICS).open("a", encoding="utf8") as stream:
            stream.write(json.dumps(values) + "\n")
        if self.accelerator.trackers:
            self.accelerator.log(
                {k: v for k, v in values.items() if k != "step"}, step=values["step"]
            )

    def _finish(self, stopped: bool) -> None:
        if self.accelerator.is_main_process:
            file = self.config.run_dir / checkpoint.RUN
            facts = json.loads(file.read_text("utf8"))
            facts["finished"] = {
                "steps": self.step, "stopped_early": stopped,
                "best_step": self.best_step, f"validation.{self.settings.select_by}": self.best_score,
            }  # fmt: skip
            write_text(file, json.dumps(facts, indent=1) + "\n")
        self.accelerator.wait_for_everyone()


class Batches:
    """Which questions each step takes: a function of the step alone, so that a run can go on anywhere.

    An epoch is a seeded permutation; what is left behind its last whole step waits for the next epoch.
    """

    def __init__(self, settings: TrainingConfig, num_questions: int, processes: int, seed: int):
        self.micro = min(settings.batch_size, num_questions)
        self.per_step = min(settings.batch_size * settings.accumulation * processes, num_questions)
        self.per_epoch = num_questions // self.per_step
        total = settings.epochs * self.per_epoch
        self.total_steps = min(total, settings.max_steps) if settings.max_steps else total
        self._num_questions, self._seed = num_questions, seed

    def epoch(self, step: int) -> int:
        """Epoch of a step, both from 0."""
        return step // self.per_epoch

    def indices(self, step: int) -> list[list[int]]:
        """Micro-batches of a step, for all processes in turn."""
        epoch, position = divmod(step, self.per_epoch)
        order = torch.Generator().manual_seed(self._seed * 1_000_003 + epoch)
        permutation = torch.randperm(self._num_questions, generator=order)
        rows = permutation[position * self.per_step : (position + 1) * self.per_step]
        return [part.tolist() for part in rows.split(self.micro)]


def plan(config: RunConfig) -> str:
    """What a run would do, in a few lines; nothing is loaded."""
    t, g, p = config.training, config.generator, config.prompt
    source = config.data.path if config.data.source == "rog" else "the quick-start facts"
    inputs = [
        name
        for name, on in (("soft tokens", p.soft_prompt), ("triples as text", p.hard_prompt))
        if on
    ]
    length = f"{t.epochs} epochs" + (f", at most {t.max_steps} steps" if t.max_steps else "")
    return "\n".join((
        f"run        {config.name} -> {config.run_dir} (seed {config.seed})",
        f"data       {source}: learn from {config.data.train_split}, validate on {config.data.validation_split}",
        f"retrieve   {config.head}: top {config.retriever.top_k} nodes, embedded by {config.embedder.model}",
        f"read       {', '.join(inputs) or 'the question only'}; at most {p.max_prompt_tokens} tokens of triples",
        f"generate   {g.model}, mode {g.mode}, at most {g.max_new_tokens} new tokens",
        f"train      {length}; {t.batch_size} questions x {t.accumulation} a step and device; "
        f"best {t.select_by} of every {t.eval_every} steps",
    ))  # fmt: skip


def _accelerator(config: RunConfig) -> Accelerator:
    full_on_gpu = config.generator.mode == "full" and torch.cuda.is_available()
    tracked = config.tracker.wandb != "disabled"
    if tracked:
        try:
            importlib.metadata.version("wandb")
        except importlib.metadata.PackageNotFoundError as error:
            raise ValueError("tracker.wandb needs wandb: pip install 'bisrqa[wandb]'") from error
    accelerator = Accelerator(
        mixed_precision="bf16" if full_on_gpu else "no", log_with="wandb" if tracked else None
    )
    if tracked:
        config.run_dir.mkdir(parents=True, exist_ok=True)
        options = {"mode": config.tracker.wandb, "name": config.name, "dir": str(config.run_dir)}
        accelerator.init_trackers(config.tracker.project, to_dict(config), {"wandb": options})
    return accelerator


def _claim(config: RunConfig, accelerator: Accelerator) -> bool:
    """Make the run's folder, or check that it is this run's; True if it is finished."""
    file, run_file = config.run_dir / checkpoint.CONFIG, config.run_dir / checkpoint.RUN
    if file.exists():
        theirs, ours = yaml.safe_load(file.read_text("utf8")), to_dict(config)
        differing = sorted(_differences(theirs, ours))
        if differing:
            shown = "; ".join(differing[:5])
            raise ValueError(
                f"{config.run_dir} holds a run with other settings ({shown}); choose another --name or delete it"
            )
        return run_file.exists() and "finished" in json.loads(run_file.read_text("utf8"))
    if accelerator.is_main_process:
        write_text(file, to_yaml(config))
    accelerator.wait_for_everyone()
    return False


def _differences(theirs: Any, ours: Any, key: str = "") -> list[str]:
    if key in FREE:
        return []
    if isinstance(theirs, dict) and isinstance(ours, dict):
        return [
            line
            for name in theirs.keys() | ours.keys()
            for line in _differences(theirs.get(name), ours.get(name), f"{key}.{name}".lstrip("."))
        ]
    return [] if theirs == ours else [f"{key}: {theirs!r} there, {ours!r} here"]


def _teachable(model: BiSRQA, train: Sequence[Example]) -> list[Prepared]:
    prepared = model.prepare(train)
    kept = [p for p, target in zip(prepared, model.targets(prepared), strict=True) if target]
    if len(kept) < len(prepared):
        logger.warning(
            "%d training questions have no gold that can be written", len(prepared) - len(kept)
        )
    return kept


def _groups(model: BiSRQA, settings: TrainingConfig) -> list[dict[str, Any]]:
    """Parameter groups: MAIF and the language model have rates of their own; only matrices decay."""
    groups = []
    parts: list[tuple[nn.Module | None, float]] = [
        (model.encoder, settings.encoder_learning_rate), (model.generator, settings.learning_rate)
    ]  # fmt: skip
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


def _cut_log(file: Path, step: int) -> None:
    """Drop lines behind ``step`` (and a last one that was cut off): they will be written again."""
    if not file.exists():
        return
    kept = []
    for line in file.read_text("utf8").splitlines():
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line)
        except json.JSONDecodeError:
            break
    write_text(file, "".join(line + "\n" for line in kept))


def _facts(
    config: RunConfig, fingerprint: str, train: Sequence[Example], valid: Sequence[Example]
) -> dict[str, Any]:
    """What a result depends on besides the config."""
    packages = ("bisrqa", "torch", "transformers", "peft", "accelerate", "sentence-transformers")
    return {
        "git_revision": _git_revision(),
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in packages},
        "seed": config.seed,
        "base_model": {"name": config.generator.model, "fingerprint": fingerprint},
        "data": {
            config.data.train_split: {"questions": len(train), "fingerprint": _fingerprint(train)},
            config.data.validation_split: {
                "questions": len(valid),
                "fingerprint": _fingerprint(valid),
            },
        },
    }


def _fingerprint(split: Sequence[Example]) -> str:
    """Hash of questions, golds and kept edges."""
    digest = hashlib.sha256()
    for e in split:
        q = e.question
        digest.update(
            repr((q.id, q.question, q.answers, q.topics, e.evidence.edge_ids.tolist())).encode()
        )
    return digest.hexdigest()[:16]


def _git_revision() -> str | None:
    """Revision of the source that runs, with ``+`` if it was changed; None outside a checkout."""
    here = Path(__file__).parent
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--abbrev=12"],
            cwd=here, capture_output=True, text=True, check=True, timeout=10,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()
