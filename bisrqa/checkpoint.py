"""What a checkpoint folder holds.

::

    <run>/config.yaml  run.json  metrics.jsonl  best.txt  retriever/
    <run>/step-000400/  step.json  encoder.safetensors  adapter/  llm.safetensors  trainer.pt

Only what was trained is saved: ``encoder.safetensors`` with a soft prompt, ``adapter/`` in mode
``lora``, ``llm.safetensors`` in mode ``full``; ``retriever/`` is a copy of the folder that
``retriever.learned`` named when the run began. The base model is named, never copied;
``step.json`` has its fingerprint and the checksum of every file. ``trainer.pt`` is what resuming
needs, and the only pickle; it is loaded with ``weights_only=True``.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from bisrqa.files import sha256, write_folder, write_text
from bisrqa.generator import check_tensors, whole
from bisrqa.model import BiSRQA

FORMAT = 1
CONFIG, RUN, METRICS, BEST = "config.yaml", "run.json", "metrics.jsonl", "best.txt"
RETRIEVER = "retriever"
_ENCODER, _ADAPTER, _LLM, _TRAINER = (
    "encoder.safetensors",
    "adapter",
    "llm.safetensors",
    "trainer.pt",
)


def save(
    run_dir: Path, step: int, model: BiSRQA, trainer: dict[str, Any], *, write: bool = True
) -> Path:
    """Write ``step-<step>``, whole or not at all.

    Args:
        run_dir: The run's folder.
        step: Optimizer steps taken.
        model: Its trained weights are written.
        trainer: State to resume from: tensors, numbers, text, lists and dictionaries only.
        write: False only takes part in gathering the weights, where processes share them.
    """
    folder = run_dir / f"step-{step:06d}"
    encoder = _tensors(model.encoder) if model.encoder is not None else {}
    llm = {name: whole(value) for name, value in model.generator.trained().items()}
    if not write:
        return folder
    with write_folder(folder, sum(_bytes(part) for part in (encoder, llm, trainer))) as partial:
        if model.encoder is not None:
            save_file(encoder, partial / _ENCODER)
        if model.generator.has_adapters:
            model.generator.save_adapter(partial / _ADAPTER, llm)
        elif model.generator.config.mode == "full":
            save_file(llm, partial / _LLM)
        torch.save(trainer, partial / _TRAINER)
        files = sorted(file for file in partial.rglob("*") if file.is_file())
        header = {
            "format": FORMAT,
            "step": step,
            "base_model": model.generator.fingerprint,
            "sha256": {str(file.relative_to(partial)): sha256(file) for file in files},
        }
        (partial / "step.json").write_text(json.dumps(header, indent=1) + "\n", "utf8")
    return folder


def load(folder: Path, model: BiSRQA, *, base_name: str) -> int:
    """Put a step folder's weights into a model.

    Args:
        folder: A ``step-…`` folder.
        model: Built from the run's config.
        base_name: What the config calls the base model, for messages.

    Returns:
        The step.

    Raises:
        ValueError: A file is missing, damaged or of another format; the base model is another one;
            a tensor is missing, unknown or of another shape. The model is not to be used then.
    """
    header = check(folder)
    if header["base_model"] != model.generator.fingerprint:
        raise ValueError(
            f"{folder} was trained on another base model than generator.model {base_name} "
            f"(fingerprint {header['base_model']}, this one has {model.generator.fingerprint})"
        )
    parts = {_ENCODER: model.encoder is not None, _LLM: False, _ADAPTER: False}
    if model.generator.has_adapters:
        parts[_ADAPTER] = True
    elif model.generator.config.mode == "full":
        parts[_LLM] = True
    for name, expected in parts.items():
        if (folder / name).exists() != expected:
            state = "lacks" if expected else "holds"
            raise ValueError(f"{folder} {state} {name}: it was trained with other settings")
    if model.encoder is not None:
        found = _read(folder / _ENCODER)
        check_tensors(_tensors(model.encoder), found, str(folder / _ENCODER))
        model.encoder.load_state_dict(found)
    if parts[_ADAPTER]:
        file = folder / _ADAPTER / "adapter_model.safetensors"
        model.generator.load_adapter(_read(file), str(file))
    if parts[_LLM]:
        found = _read(folder / _LLM)
        check_tensors(model.generator.trained(), found, str(folder / _LLM))
        model.generator.llm.load_state_dict(found, strict=False)
    return int(header["step"])


def adapter(folder: Path) -> Path | None:
    """Where a step's adapters are, in peft's own layout; None without."""
    return folder / _ADAPTER if (folder / _ADAPTER).exists() else None


def load_trainer(folder: Path) -> dict[str, Any]:
    """What :func:`save` was given to resume from."""
    return torch.load(folder / _TRAINER, map_location="cpu", weights_only=True)


def check(folder: Path) -> dict[str, Any]:
    """Read ``step.json`` and hold every file against its checksum.

    Raises:
        ValueError: Not a whole step folder; names the file.
    """
    try:
        header = json.loads((folder / "step.json").read_text("utf8"))
    except (OSError, json.JSONDecodeError) as error:
        raise ValueError(f"{folder}: not a whole checkpoint step: {error}") from error
    if header.get("format") != FORMAT:
        raise ValueError(f"{folder}: format {header.get('format')!r}; this version reads {FORMAT}")
    for name, expected in header["sha256"].items():
        file = folder / name
        if not file.is_file():
            raise ValueError(f"{file} is missing: the checkpoint is not whole")
        if sha256(file) != expected:
            raise ValueError(f"{file} is damaged or was changed: its checksum differs")
    return header


def steps(run_dir: Path) -> list[Path]:
    """Whole step folders, oldest first."""
    return sorted(folder for folder in run_dir.glob("step-*") if (folder / "step.json").is_file())


def best(run_dir: Path) -> Path:
    """The step that validation chose.

    Raises:
        ValueError: The folder holds no finished checkpoint.
    """
    try:
        name = (run_dir / BEST).read_text("utf8").strip()
    except OSError as error:
        there = "has no checkpoint yet" if run_dir.is_dir() else "does not exist"
        raise ValueError(f"checkpoint folder {run_dir} {there} ({BEST} is not there)") from error
    return run_dir / name


def keep_only(run_dir: Path, names: set[str]) -> None:
    """Delete all step folders but those; one that is half deleted is no step any more."""
    for folder in run_dir.glob("step-*"):
        if folder.name not in names:
            shutil.rmtree(folder.rename(run_dir / f".{folder.name}"))


def sweep(run_dir: Path) -> None:
    """Delete what a save that was killed has left."""
    for folder in run_dir.glob(".step-*"):
        shutil.rmtree(folder)


def set_best(run_dir: Path, folder: Path) -> None:
    """Name the best step."""
    write_text(run_dir / BEST, folder.name + "\n")


def _tensors(module: torch.nn.Module) -> dict[str, Tensor]:
    return {k: whole(v) for k, v in module.state_dict().items()}


def _bytes(part: Any) -> int:
    """Of all tensors in nested lists and dictionaries."""
    if isinstance(part, Tensor):
        return part.numel() * part.element_size()
    parts = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    return sum(map(_bytes, parts))


def _read(file: Path) -> dict[str, Tensor]:
    try:
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{file}: not a whole safetensors file: {error}") from error
