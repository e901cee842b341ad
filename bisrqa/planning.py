"""What a run will need: memory, disk and time, from the settings and the model's config alone.

No weights are read: the model is built without memory (PyTorch's meta device), and its parts are
counted.

Memory of a training step is what stays: weights, trained weights four times (with gradient and
AdamW's two moments), and for every token of a part what each layer keeps for its way back. An
answer needs keys and values of every token instead. Time is the floating-point operations over what
the device does a second, of which a share that was measured on a CPU, and is assumed on a GPU, goes
into products of matrices.
"""

import dataclasses
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from bisrqa import data, encoders, generator
from bisrqa.config import RunConfig
from bisrqa.linear import speed_up
from bisrqa.packaged import default_cache_dir, resolve_model
from bisrqa.prompt import PromptBuilder, Words

GB = 1e9
QUESTION_TOKENS, ANSWER_TOKENS = 12, 8
"""Of a usual question, and of its answers."""
LIBRARIES = {"cpu": 0.75 * GB, "gpu": 0.8 * GB}
"""Python with its libraries, or a context on a GPU with theirs."""
TRAIN_SHARE, ANSWER_SHARE = {"cpu": 0.45, "gpu": 0.35}, {"cpu": 0.6, "gpu": 0.25}
"""Share of the fastest products of matrices that a step, and reading a prompt, come to."""
LOST = {"cpu": 1.5, "gpu": 1.15}
"""Memory that a step takes beside what it keeps: gaps that an allocator leaves."""
DECODE_SHARE = 0.15
"""Writing replies, beside reading the prompts, with answers of a few words."""
GPUS = {  # gigabytes, bfloat16 teraflops
    "t4": (15, 65), "rtx3090": (24, 71), "rtx4090": (24, 165), "l40s": (46, 362),
    "a100-40": (40, 312), "a100-80": (80, 312), "h100": (80, 989), "h200": (141, 989),
}  # fmt: skip
DIM = 384
"""Width of text embeddings where a text encoder does not say it in its config."""


class Step(NamedTuple):
    """Something that would make it fit, or smaller."""

    change: str
    memory: float


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Bytes and seconds; ``table`` puts them into words."""

    device: str
    room: float | None
    """Memory of the device, where it is known."""
    parameters: int
    trained: int
    weights: float
    training: float
    """Peak memory of training."""
    answering: float
    """Peak memory of answering."""
    disk: float
    """Checkpoints."""
    steps: int
    training_seconds: float
    answering_seconds: float
    """Of ``evaluation.split``."""
    advice: tuple[Step, ...]

    @property
    def memory(self) -> float:
        """Peak of the whole run."""
        return max(self.training, self.answering)


class _Sizes(NamedTuple):
    """What the estimate needs to know of a model."""

    parameters: int
    trained: int
    encoder: int
    words: int
    """Parameters of the layer that gives logits."""
    kept: float
    """Numbers that a layer keeps of a token for its way back, once over all layers."""
    layer: float
    """The same for the largest layer."""
    cached: int
    """Keys and values of a token, over all layers."""
    hidden: int
    layers: int
    vocabulary: int
    inner: int


def plan(config: RunConfig, gpu: str | None = None) -> Plan:
    """Estimate a run.

    Args:
        config: Of the run; its model's ``config.json`` and tokenizer are read, and no weights.
        gpu: A name of :data:`GPUS`; None is this machine's CPU.

    Raises:
        ValueError: No such GPU, model or data.
    """
    if gpu is not None and gpu not in GPUS:
        raise ValueError(f"--gpu {gpu}: unknown; one of {', '.join(GPUS)}")
    kind = "cpu" if gpu is None else "gpu"
    sizes = _sizes(config)
    tokens = _tokens(config)
    training, answering = _memory(config, sizes, kind)
    rate = _cpu_rate(sizes) if gpu is None else GPUS[gpu][1] * 1e12
    steps, step_seconds = _training_time(config, sizes, tokens, rate, kind)
    per_answer = 2 * (sizes.parameters - sizes.words) * tokens / (rate * ANSWER_SHARE[kind])
    per_answer *= 1 + DECODE_SHARE
    t = config.training
    looks = max(1, steps // t.eval_every)
    validated = _count(config, config.data.validation_split, t.validation_limit)
    asked = _count(config, config.evaluation.split, config.evaluation.limit)
    return Plan(
        device=gpu or "this CPU",
        room=None if gpu is None else GPUS[gpu][0] * GB,
        parameters=sizes.parameters,
        trained=sizes.trained + sizes.encoder,
        weights=_weights(config, sizes, kind),
        training=training,
        answering=answering,
        disk=2 * 12 * float(sizes.trained + sizes.encoder),  # best and last, with both moments
        steps=steps,
        training_seconds=steps * step_seconds + looks * validated * per_answer,
        answering_seconds=asked * per_answer,
        advice=tuple(_advice(config, sizes, kind, max(training, answering))),
    )


def _sizes(config: RunConfig) -> _Sizes:
    cache_dir = Path(config.cache_dir) if config.cache_dir else default_cache_dir()
    g = config.generator
    source = resolve_model(g.model, cache_dir)
    try:
        llm_config = AutoConfig.from_pretrained(source, revision=g.revision)
    except (OSError, ValueError) as error:
        raise ValueError(f"generator.model: cannot read {g.model!r}: {error}") from error
    with torch.device("meta"):
        llm = AutoModelForCausalLM.from_config(llm_config)
        parameters = sum(p.numel() for p in llm.parameters())
        head = llm.get_output_embeddings().weight.numel()
        tied = llm.get_output_embeddings().weight is llm.get_input_embeddings().weight
        llm.requires_grad_(g.mode == "full")
        tuned = generator.with_adapters(llm, g) if g.mode == "lora" else llm
    text = llm_config.get_text_config(decoder=True)
    encoder = 0
    if config.prompt.soft_prompt or config.prompt.order == "attention":
        with torch.device("meta"):
            maif = encoders.build(
                config.encoder, dim=_dim(config, cache_dir), llm_hidden=text.hidden_size,
                word_norm=1.0,
            )  # fmt: skip
        encoder = sum(p.numel() for p in maif.parameters())
    layers = text.num_hidden_layers
    heads = text.num_attention_heads
    wide = getattr(text, "head_dim", None) or text.hidden_size // heads
    grouped = getattr(text, "num_key_value_heads", None) or heads
    inner = getattr(text, "intermediate_size", None) or 4 * text.hidden_size
    # Residual stream twice, queries and the attention's result, keys and values spread over all
    # heads, and the three products of a gated feed-forward layer.
    layer = 2 * text.hidden_size + 4 * heads * wide + 3 * inner
    kept = float(layers * layer) + _of_adapters(tuned, g.lora_dropout > 0)
    return _Sizes(
        parameters=parameters,
        trained=sum(p.numel() for p in tuned.parameters() if p.requires_grad),
        encoder=encoder,
        words=0 if tied else head,
        kept=kept,
        layer=kept / layers,
        cached=2 * layers * grouped * wide,
        hidden=text.hidden_size,
        layers=layers,
        vocabulary=text.vocab_size,
        inner=inner,
    )


def _of_adapters(llm: nn.Module, dropout: bool) -> float:
    """Numbers that adapters keep of a token: their input, after dropout, and its mask."""
    total = 0.0
    for module in llm.modules():
        if hasattr(module, "lora_A"):
            total += cast(Any, module).in_features * (2 if dropout else 1)
    return total


def _dim(config: RunConfig, cache_dir: Path) -> int:
    """Width of the text embeddings."""
    try:
        found = AutoConfig.from_pretrained(resolve_model(config.embedder.model, cache_dir))
    except (OSError, ValueError):
        return DIM
    return getattr(found, "hidden_size", DIM)


def _tokens(config: RunConfig) -> int:
    """Of a question's row: prompts of graphs fill their budget."""
    cache_dir = Path(config.cache_dir) if config.cache_dir else default_cache_dir()
    source = resolve_model(config.generator.model, cache_dir)
    tokenizer = AutoTokenizer.from_pretrained(source, revision=config.generator.revision)
    soft = config.encoder.num_soft_tokens if config.prompt.soft_prompt else 0
    plain = PromptBuilder(tokenizer, config.prompt, soft).length(Words([], []))
    return plain + QUESTION_TOKENS + config.prompt.max_prompt_tokens * config.prompt.hard_prompt


def _weights(config: RunConfig, sizes: _Sizes, kind: str) -> float:
    if config.generator.quantize == "nf4":  # but not the words; double quantised scales
        words = sizes.vocabulary * sizes.hidden * (2 if sizes.words else 1)
        return words * (4.0 if kind == "cpu" else 2.0) + (sizes.parameters - words) * 0.52
    wide = kind == "cpu" or config.generator.mode == "full"
    return float(sizes.parameters * (4 if wide else 2))


def _memory(config: RunConfig, sizes: _Sizes, kind: str) -> tuple[float, float]:
    """Peaks of training, with its validations, and of answering, in bytes."""
    width = 4 if kind == "cpu" else 2
    # The weights of a language model that is trained whole are counted already.
    moments = 16 if config.generator.mode != "full" else 12
    trained = moments * float(sizes.trained) + 16 * float(sizes.encoder)
    row = _tokens(config) + ANSWER_TOKENS
    part = max(row, min(config.training.batch_tokens, config.training.batch_size * row))
    kept = sizes.kept
    if config.training.gradient_checkpointing:
        kept = sizes.layers * sizes.hidden + sizes.layer
    logits = 4 * 3 * sizes.vocabulary * ANSWER_TOKENS * (part / row)
    passing = 3 * sizes.inner * part * width  # of the layer that is at work
    step = LOST[kind] * (part * kept * width + logits + passing)
    new, beams = config.generator.max_new_tokens, config.generator.num_beams

    def answer(split: str, limit: int | None) -> float:
        rows = max(1.0, config.evaluation.batch_tokens // ((row + new) * beams))
        rows = beams * min(rows, _count(config, split, limit) or rows)
        cache = (row + new) * sizes.cached * 1.3  # rows that leave are copied
        at_work = row * (3 * sizes.inner + 4 * sizes.hidden)
        return 1.1 * rows * (cache + at_work) * width

    base = LIBRARIES[kind] + _weights(config, sizes, kind)
    validation = answer(config.data.validation_split, config.training.validation_limit)
    held = step / 2 if kind == "cpu" else 0.0  # freed, but not given back
    return (
        base + trained + max(step, held + validation),
        base + trained / 4 + answer(config.evaluation.split, config.evaluation.limit),
    )


def _training_time(
    config: RunConfig, sizes: _Sizes, tokens: int, rate: float, kind: str
) -> tuple[int, float]:
    """Optimizer steps, and seconds of one."""
    t = config.training
    questions = _count(config, config.data.train_split, config.data.train_limit)
    size = min(t.batch_size, questions or t.batch_size)
    steps = t.epochs * (questions // size)
    steps = min(steps, t.max_steps) if t.max_steps else steps
    passes = 3 if config.generator.mode == "full" else 2
    passes += t.gradient_checkpointing
    operations = 2 * passes * (sizes.parameters - sizes.words) * (tokens + ANSWER_TOKENS)
    operations += 6 * sizes.trained * (tokens + ANSWER_TOKENS) * (config.generator.mode == "lora")
    operations += 4 * sizes.vocabulary * sizes.hidden * ANSWER_TOKENS
    return steps, size * operations / (rate * TRAIN_SHARE[kind])


def _advice(config: RunConfig, sizes: _Sizes, kind: str, now: float) -> Iterator[Step]:
    """Settings that would lower the peak, the most first, each on its own."""
    t, e = config.training, config.evaluation
    row = _tokens(config) + ANSWER_TOKENS
    tried = []
    if not t.gradient_checkpointing:
        changed = dataclasses.replace(t, gradient_checkpointing=True)
        tried.append(("training.gradient_checkpointing true", {"training": changed}))
    if t.batch_tokens > row:
        changed = dataclasses.replace(t, batch_tokens=row)
        name = f"training.batch_tokens {changed.batch_tokens}"
        tried.append((name, {"training": changed}))
    if config.generator.quantize == "none" and config.generator.mode != "full":
        changed = dataclasses.replace(config.generator, quantize="nf4")
        tried.append(("generator.quantize nf4", {"generator": changed}))
    changed = dataclasses.replace(e, batch_tokens=max(1, e.batch_tokens // 4))
    tried.append((f"evaluation.batch_tokens {changed.batch_tokens}", {"evaluation": changed}))
    steps = [
        Step(name, max(_memory(dataclasses.replace(config, **parts), sizes, kind)))
        for name, parts in tried
    ]
    yield from sorted((s for s in steps if s.memory < 0.97 * now), key=lambda s: s.memory)


def table(found: Plan) -> str:
    """A plan in a few lines."""
    room = f" of {found.room / GB:.0f}" if found.room else ""
    fits = (
        "" if not found.room else ("  fits" if found.memory < 0.95 * found.room else "  TOO MUCH")
    )
    lines = [
        ("device", found.device),
        ("parameters", f"{found.parameters / 1e6:,.0f} M, {found.trained / 1e6:,.1f} M trained"),
        ("memory", f"{found.memory / GB:.1f}{room} GB at most{fits}"),
        ("", f"training {found.training / GB:.1f}, answering {found.answering / GB:.1f}, "
             f"of which weights {found.weights / GB:.1f}"),
        ("disk", f"{found.disk / GB:.2f} GB of checkpoints"),
        ("time", f"{_duration(found.training_seconds)} for {found.steps} steps with validation, "
                 f"{_duration(found.answering_seconds)} to answer"),
    ]  # fmt: skip
    lines += [("to save", f"{s.change}: {s.memory / GB:.1f} GB at most") for s in found.advice]
    return "\n".join(f"{key:<12}{text}" for key, text in lines)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _count(config: RunConfig, split: str, limit: int | None) -> int:
    found = data.size(config.data, split, limit=limit)
    if found is None:
        found = sum(1 for _ in data.read(config.data, split, limit=limit, report=False))
    return found


def _cpu_rate(sizes: _Sizes) -> float:
    """Operations a second of this CPU, in a product like the model's."""
    x = torch.randn(512, sizes.hidden)
    layer = nn.Sequential(nn.Linear(sizes.hidden, sizes.inner, bias=False)).requires_grad_(False)
    speed_up(layer)
    best = float("inf")
    for _ in range(8):
        started = time.perf_counter()
        layer(x)
        best = min(best, time.perf_counter() - started)
    return 2 * 512 * sizes.hidden * sizes.inner / best
