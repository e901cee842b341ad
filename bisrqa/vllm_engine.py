"""Replies by vLLM, which is handed prompts as word embeddings with the soft tokens among them.

Encoder, prompt and word embeddings stay here, on the CPU, and the GPU is left to vLLM: it loads the
layers from the base model's folder and the adapters from the checkpoint's. Written after the source
of vLLM 0.34.
"""

import contextlib
import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter

import torch

from bisrqa.answering import Engine
from bisrqa.config import RunConfig
from bisrqa.generator import Replies
from bisrqa.model import BiSRQA, Prepared
from bisrqa.packaged import resolve_model

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM can make room for; adapters of a rank between go where the next one would."""


def check(config: RunConfig, processes: int) -> None:
    """Refuse what cannot work, before anything is retrieved.

    Raises:
        ValueError: vLLM is not installed; there are several processes, or adapters too large.
    """
    if importlib.util.find_spec("vllm") is None:
        raise ValueError("evaluation.engine vllm needs vllm: pip install 'bisrqa[vllm]'")
    if processes > 1:
        raise ValueError(
            f"evaluation.engine vllm starts its own processes, and here are {processes}: leave "
            "accelerate out and set evaluation.tensor_parallel_size"
        )
    if config.generator.mode == "lora" and config.generator.lora_rank > RANKS[-1]:
        raise ValueError(
            f"evaluation.engine vllm takes a generator.lora_rank up to {RANKS[-1]}, "
            f"not {config.generator.lora_rank}"
        )


@contextlib.contextmanager
def started(
    model: BiSRQA, config: RunConfig, cache_dir: Path, adapter: Path | None
) -> Iterator[Engine]:
    """Hold a vLLM that has the model's layers, and give what has it reply to a batch.

    Prompts are read and replies written at the same time, so that all seconds count as decoding.

    Args:
        model: On the CPU, in eval mode; loses its layers.
        config: Which base model, how long replies are, and how much of the GPUs is taken.
        cache_dir: Where models inside packages are unpacked.
        adapter: Folder of trained adapters, as peft writes it; None without.
    """
    from vllm import LLM, SamplingParams  # pyright: ignore[reportMissingImports]
    from vllm.lora.request import LoRARequest  # pyright: ignore[reportMissingImports]

    model.generator.keep_words()
    torch.cuda.empty_cache()  # what retrieval had
    settings, request, lora = config.evaluation, None, {}
    if adapter is not None:
        request = LoRARequest("trained", 1, str(adapter.resolve()))
        rank = min(rank for rank in RANKS if rank >= config.generator.lora_rank)
        lora = {"enable_lora": True, "max_lora_rank": rank}
    llm = LLM(
        model=resolve_model(config.generator.model, cache_dir),
        revision=config.generator.revision,
        dtype=str(model.generator.dtype).removeprefix("torch."),
        seed=config.seed,
        max_model_len=-1,  # as long as there is room for; a long context may not fit at all
        enable_prompt_embeds=True,
        tensor_parallel_size=settings.tensor_parallel_size,
        gpu_memory_utilization=settings.gpu_memory_utilization,
        **lora,
    )
    sampling = SamplingParams(
        temperature=0.0,
        max_tokens=config.generator.max_new_tokens,
        stop_token_ids=model.builder.stop_ids,
        ignore_eos=True,  # some models name more ends than we stop at
        detokenize=False,
    )

    @torch.no_grad()
    def reply(batch: Sequence[Prepared]) -> Replies:
        begun = perf_counter()
        embeds, tokens = model.inputs(batch)
        masks = tokens.attention_mask.bool()
        prompts = [{"prompt_embeds": row[mask]} for row, mask in zip(embeds, masks, strict=True)]
        encoded = perf_counter()
        made = llm.generate(prompts, sampling, lora_request=request, use_tqdm=False)
        ids = [list(one.outputs[0].token_ids) for one in made]
        seconds = perf_counter() - encoded
        texts = model.generator.texts(ids)
        return Replies(texts, list(map(len, ids)), 0.0, seconds, encoded - begun)

    try:
        yield reply
    finally:
        llm.llm_engine.engine_core.shutdown()
