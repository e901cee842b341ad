"""A run's folder: whose it is, what the run depends on, and its log."""

import hashlib
import importlib.metadata
import json
import platform
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from bisrqa import checkpoint, provenance
from bisrqa import config as configs
from bisrqa.config import RunConfig, to_dict, to_yaml
from bisrqa.files import append_text, write_folder, write_text

# Settings that may change between the start of a run and its continuation.
FREE = (
    "evaluation", "tracker", "output_dir", "cache_dir",
    # Memory and time, but not the loss.
    "training.batch_tokens", "training.gradient_checkpointing", "training.packing",
    "training.workers",
)  # fmt: skip
PACKAGES = ("bisrqa", "torch", "transformers", "peft", "accelerate", "sentence-transformers")


def plan(config: RunConfig) -> str:
    """What a run would do, in a few lines; nothing is loaded."""
    d, t, g, p = config.data, config.training, config.generator, config.prompt
    source = d.path if d.source == "rog" else "the quick-start facts"
    questions = f"the first {d.train_limit} of {d.train_split}" if d.train_limit else d.train_split
    inputs = (("soft tokens", p.soft_prompt), ("triples as text", p.hard_prompt))
    read = " and ".join(name for name, on in inputs if on) or "the question only"
    length = f"{t.epochs} epochs" + (f", at most {t.max_steps} steps" if t.max_steps else "")
    lines = {
        "run": f"{config.name} -> {config.run_dir} (seed {config.seed})",
        "data": f"{source}: learn from {questions}, validate on {d.validation_split}",
        "retrieve": f"{config.head}: top {config.retriever.top_k} nodes, "
        f"embedded by {config.embedder.model}",
        "read": f"{read}; at most {p.max_prompt_tokens} tokens of triples",
        "generate": f"{g.model}, mode {g.mode}, at most {g.max_new_tokens} new tokens",
        "train": f"{length}; {t.batch_size} questions a step; "
        f"best {t.select_by} of every {t.eval_every} steps",
    }
    return "\n".join(f"{key:<10}{text}" for key, text in lines.items())


def is_finished(config: RunConfig) -> bool:
    """Whether the run's folder holds this very run, trained to its end.

    Raises:
        ValueError: The folder holds a run with other settings; names them.
    """
    file, run_file = config.run_dir / checkpoint.CONFIG, config.run_dir / checkpoint.RUN
    if not file.exists():
        return False
    # Read as a config: a setting that came later has its default there.
    theirs = to_dict(configs.load(file))
    if differing := sorted(_differences(theirs, to_dict(config))):
        raise ValueError(
            f"{config.run_dir} holds a run with other settings ({'; '.join(differing[:5])}); "
            "choose another --name or delete it"
        )
    return run_file.exists() and "finished" in json.loads(run_file.read_text("utf8"))


@runtime_checkable  # the type checks of the tests need it
class Known(Protocol):
    """A question that a run learns from or looks at."""

    @property
    def source_digest(self) -> bytes:
        """Hash of everything that its record held."""
        ...


def start(
    config: RunConfig, fingerprint: str, train: Sequence[Known], valid: Sequence[Known]
) -> None:
    """Write ``config.yaml`` and ``run.json``: what a result depends on besides the config.

    A trained retriever is copied beside them.

    Raises:
        ValueError: The run was begun on other data, another base model or another retriever.
    """
    learned = with_retriever(config, config.run_dir).retriever.learned
    facts = {
        "git_revision": _git_revision(),
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        "seed": config.seed,
        "base_model": {"name": config.generator.model, "fingerprint": fingerprint},
        "retriever": provenance.content(Path(learned)) if learned else None,
        "data": {
            name: {"questions": len(split), "fingerprint": _fingerprint(split)}
            for name, split in (
                (config.data.train_split, train),
                (config.data.validation_split, valid),
            )
        },
    }
    file = config.run_dir / checkpoint.RUN
    if file.exists():
        before = json.loads(file.read_text("utf8"))
        for key in ("base_model", "data", "retriever"):
            if before.get(key) != facts[key]:
                raise ValueError(
                    f"{config.run_dir} was begun with {key} {before.get(key)}, now it is "
                    f"{facts[key]}; choose another --name or delete it"
                )
    elif facts["retriever"] is not None:
        with write_folder(config.run_dir / checkpoint.RETRIEVER) as partial:
            shutil.copytree(Path(learned or ""), partial, dirs_exist_ok=True)
    write_text(config.run_dir / checkpoint.CONFIG, to_yaml(config))
    write_text(file, json.dumps(facts, indent=1) + "\n")


def with_retriever(config: RunConfig, run_dir: Path) -> RunConfig:
    """The config with the retriever that the run was begun with, if it does not name another.

    Args:
        config: The run's own, or one that differs from it.
        run_dir: Of a run; nothing changes if it was not begun yet.
    """
    file = run_dir / checkpoint.RUN
    if not file.exists():
        return config
    begun_with = configs.load(run_dir / checkpoint.CONFIG).retriever.learned
    if config.retriever.learned != begun_with:
        return config
    # Without one on record the run began with the plain walk, whatever has been made since.
    known = json.loads(file.read_text("utf8")).get("retriever")
    learned = None if known is None else str(run_dir / checkpoint.RETRIEVER)
    return replace(config, retriever=replace(config.retriever, learned=learned))


def finish(run_dir: Path, result: dict[str, Any]) -> None:
    """Mark a run as trained to its end."""
    file = run_dir / checkpoint.RUN
    facts = json.loads(file.read_text("utf8"))
    write_text(file, json.dumps(facts | {"finished": result}, indent=1) + "\n")


def append_log(run_dir: Path, values: dict[str, Any]) -> None:
    """Add a line to ``metrics.jsonl``."""
    append_text(run_dir / checkpoint.METRICS, json.dumps(values) + "\n")


def cut_log(run_dir: Path, step: int) -> None:
    """Drop lines behind ``step``, and a last one that was cut off: they will be written again."""
    file = run_dir / checkpoint.METRICS
    if not file.exists():
        return
    lines = [line for line in file.read_text("utf8").splitlines(keepends=True) if line[-1] == "\n"]
    write_text(file, "".join(line for line in lines if json.loads(line)["step"] <= step))


def _differences(theirs: Any, ours: Any, key: str = "") -> list[str]:
    if key in FREE:
        return []
    if isinstance(theirs, dict) and isinstance(ours, dict):
        return [
            line
            for name in theirs.keys() | ours.keys()
            for line in _differences(
                theirs.get(name), ours.get(name), f"{key}.{name}" if key else name
            )
        ]
    return [] if theirs == ours else [f"{key}: {theirs!r} there, {ours!r} here"]


def _fingerprint(split: Sequence[Known]) -> str:
    """Hash of the records as they were read; what was kept of them may differ between devices."""
    return hashlib.sha256(b"".join(known.source_digest for known in split)).hexdigest()[:16]


def _git_revision() -> str | None:
    """Revision of the source that runs, with ``+`` if it was changed; None outside a checkout."""
    command = ["git", "describe", "--always", "--dirty=+", "--abbrev=12"]
    here = Path(__file__).parent
    try:
        found = subprocess.run(
            command, cwd=here, capture_output=True, text=True, check=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()
