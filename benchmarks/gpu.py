"""Memory and speed of a large language model on one GPU: ``gpu.py``, or ``gpu.py --tiny`` anywhere.

Random weights in the shape of Llama-2-7B, since weights change neither: nothing is downloaded. Two
ways to take the same training step with adapters of rank 8 on queries and values: bisrqa's
(bfloat16 weights, logits of answers only) and G-Retriever's (weights in float32 under autocast,
logits of all positions). Then answers of a fixed length, alone and in a batch. The random model
never stops by itself.
"""

import gc
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import jsonargparse
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from bisrqa import memory, report
from bisrqa.clock import now
from bisrqa.config import GeneratorConfig
from bisrqa.decoding import greedy
from bisrqa.generator import Generator
from bisrqa.prompt import IGNORE

SHAPES: dict[bool, dict[str, int]] = {
    False: {},  # the defaults of LlamaConfig are those of Llama-2-7B
    True: {
        "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "vocab_size": 512,
    },
}  # fmt: skip
PAPER = {"peak_gb": 31.5, "seconds_a_question": 0.9427}
"""What the paper of BiS-RQA reports."""


def model_of(tiny: bool, device: torch.device, dtype: torch.dtype) -> LlamaForCausalLM:
    """A Llama with random weights, made where it is to stay."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            return LlamaForCausalLM(LlamaConfig(**cast(Any, SHAPES[tiny])))
    finally:
        torch.set_default_dtype(before)


def batch(given: Any, device: torch.device, vocabulary: int) -> tuple[torch.Tensor, ...]:
    """Token ids, mask and labels of equal rows."""
    torch.manual_seed(0)
    ids = torch.randint(vocabulary, (given.rows, given.tokens)).to(device)
    labels = torch.full_like(ids, IGNORE)
    labels[:, -given.answer :] = ids[:, -given.answer :]
    return ids, torch.ones_like(ids), labels


def training(
    name: str, step: Callable[[], torch.Tensor], weights: list[Any], given: Any, device: Any
) -> dict[str, Any]:
    """Seconds and peak memory of a step, optimizer included."""
    optimizer = torch.optim.AdamW(weights, 1e-5)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    seconds = []
    for _ in range(given.repeats + 1):  # the first one warms up
        started = now(device)
        step().backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(now(device) - started)
    took = sorted(seconds[1:])[given.repeats // 2]
    return {"what": name, "peak_gb": memory.peak_bytes(device) / 1e9, "seconds": took}


def ours(given: Any, device: torch.device, dtype: torch.dtype) -> list[dict[str, Any]]:
    """A step and answers, as bisrqa takes and gives them."""
    settings = GeneratorConfig(
        model="random", lora_rank=8, lora_alpha=16, lora_targets=("q_proj", "v_proj")
    )
    generator = Generator(model_of(given.tiny, device, dtype), cast(Any, None), settings).train()
    generator.to(device)
    if given.checkpointing:
        generator.checkpoint_activations()
    ids, mask, labels = batch(given, device, generator.llm.config.vocab_size)
    soft = torch.zeros(given.rows, 1, generator.hidden, device=device, requires_grad=True)

    def step() -> torch.Tensor:
        words = generator.embed(ids)
        return generator.loss(words + soft.to(words.dtype), mask, labels) / (labels >= 0).sum()

    weights = [p for p in generator.parameters() if p.requires_grad]
    rows = [training("bisrqa, step", step, weights, given, device)]
    generator.eval()
    for size in (1, given.rows, given.many):
        words = generator.embed(ids[:1].repeat(size, 1))
        started = 0.0
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        for _ in range(2):  # the first one warms up
            started = now(device)
            greedy(
                generator.llm, words, mask[:1].repeat(size, 1), prefix=words[0, :0],
                stop_ids=[-1], max_new_tokens=given.answer,
            )  # fmt: skip
        took = now(device) - started
        rows.append({
            "what": f"bisrqa, answers, batch {size}", "peak_gb": memory.peak_bytes(device) / 1e9,
            "seconds": took, "questions_a_second": size / took, "seconds_a_question": took / size,
        })  # fmt: skip
    return rows


def theirs(given: Any, device: torch.device) -> dict[str, Any]:
    """A step as G-Retriever takes it."""
    base = model_of(given.tiny, device, torch.float32).requires_grad_(False)
    lora = LoraConfig(
        r=8, lora_alpha=16, lora_dropout=0.05, target_modules=["q_proj", "v_proj"],
        task_type="CAUSAL_LM",
    )  # fmt: skip
    llm = cast(Any, get_peft_model(base, lora)).to(device).train()
    ids, mask, labels = batch(given, device, base.config.vocab_size)
    words = llm.get_input_embeddings()
    soft = torch.zeros(given.rows, 1, base.config.hidden_size, device=device, requires_grad=True)

    def step() -> torch.Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            return llm(inputs_embeds=words(ids) + soft, attention_mask=mask, labels=labels).loss

    weights = [p for p in llm.parameters() if p.requires_grad]
    return training("G-Retriever's step", step, weights, given, device)


def main() -> None:
    """Print the table."""
    parser = jsonargparse.ArgumentParser()
    parser.add_argument("--tiny", action="store_true", help="A shape for any machine.")
    parser.add_argument("--rows", type=int, default=4, help="Questions of a step.")
    parser.add_argument("--many", type=int, default=32, help="Questions of a large batch.")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--answer", type=int, default=16, help="Tokens of an answer.")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--checkpointing", action="store_true", help="In bisrqa's step.")
    parser.add_argument("--json", type=str | None, default=None, help="A file for the numbers.")
    given = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    started = time.perf_counter()
    rows = ours(given, device, torch.bfloat16 if device.type == "cuda" else torch.float32)
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    rows.append(theirs(given, device))
    rows.append({"what": "the paper's BiS-RQA, reported", **PAPER})
    keys = ("peak_gb", "seconds", "questions_a_second", "seconds_a_question")
    lines = [["what", *(key.replace("_", " ") for key in keys)]]
    for row in rows:
        cells = [f"{row[key]:.4g}" if key in row else "" for key in keys]
        lines.append([row["what"], *cells])
    print(report.grid(lines, texts=1))
    print(f"\n{device}, {time.perf_counter() - started:.0f} s in all")
    if given.json:
        Path(given.json).write_text(json.dumps(rows, indent=1) + "\n", "utf8")


if __name__ == "__main__":
    main()
