"""Triples by a language model in this process, its replies held to the schema by ``outlines``."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from bisrqa.config import ExtractionConfig
from bisrqa.data.records import Chunk
from bisrqa.extraction.base import SCHEMA, VERSION, Extraction, messages, parse
from bisrqa.packaged import resolve_model


class LocalModel:
    """Greedy replies of a ``transformers`` model, several at a time.

    Raises:
        ValueError: ``outlines`` is not installed.
    """

    cached = True

    def __init__(self, config: ExtractionConfig, cache_dir: Path):
        try:
            import outlines
        except ImportError as error:
            raise ValueError("extraction.method llm: pip install 'bisrqa[extract]'") from error
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self._config = config
        source = resolve_model(config.model, cache_dir)
        cuda = torch.cuda.is_available()
        model = AutoModelForCausalLM.from_pretrained(
            source, revision=config.revision, dtype=torch.bfloat16 if cuda else torch.float32
        )
        self._tokenizer: Any = AutoTokenizer.from_pretrained(source, revision=config.revision)
        model = model.to(torch.device("cuda" if cuda else "cpu"))  # pyright: ignore[reportArgumentType]
        wrapped = outlines.from_transformers(model, self._tokenizer)
        self._generator: Any = outlines.Generator(wrapped, outlines.json_schema(json.dumps(SCHEMA)))
        self.identity = f"llm/{VERSION}/{config.model}@{config.revision}/{config.max_new_tokens}"

    def __call__(self, chunks: Sequence[Chunk]) -> list[Extraction]:
        prompts = [
            self._tokenizer.apply_chat_template(
                messages(chunk), tokenize=False, add_generation_prompt=True
            )
            if self._tokenizer.chat_template
            else "\n\n".join(m["content"] for m in messages(chunk)) + "\n\n"
            for chunk in chunks
        ]
        with torch.no_grad():
            replies = self._generator.batch(
                prompts, max_new_tokens=self._config.max_new_tokens, do_sample=False
            )
        asked, written = (
            [len(ids) for ids in self._tokenizer(texts, add_special_tokens=False).input_ids]
            for texts in (prompts, replies)
        )
        return [parse(*row) for row in zip(replies, chunks, asked, written, strict=True)]
