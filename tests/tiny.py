"""What many tests build on: a tiny random language model, and examples made by hand.

Test files say ``import tiny``. Nothing here needs the network; all is the same at each call.

    config()       a RunConfig of tiny sizes; ``config(prompt={"soft_prompt": False})`` for others
    tokenizer()    one token per byte, three special tokens, a ChatML-like chat template
    llm()          a random Llama of two layers, as float32
    save_llm()     both as an ordinary model folder, for ``generator.load`` and ``generator.model``
    model()        a BiSRQA over them
    evidence()     kept subgraphs from triples, scored in the order in which they stand
    examples()     eight questions with evidence, ready for ``model.prepare``
"""

import dataclasses
import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from bisrqa.config import RunConfig
from bisrqa.data.records import Question, Triple, is_bare_id
from bisrqa.examples import Example
from bisrqa.generator import Generator
from bisrqa.graph.build import from_triples
from bisrqa.heads import Evidence
from bisrqa.model import BiSRQA
from bisrqa.retrieval.subgraph import Reason

DIM = 16
"""Width of the text embeddings."""

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""A turn ends with ``<|im_end|>``, which is not the end-of-sequence token."""

SPECIAL_TOKENS = {"<|endoftext|>": 256, "<|im_start|>": 257, "<|im_end|>": 258}

SIZES: dict[str, dict[str, Any]] = {
    "encoder": {"hidden": 32, "num_heads": 2, "soft_tokens": 4},
    "prompt": {"instruction": "Be brief.", "max_prompt_tokens": 96, "max_answer_tokens": 24},
    "generator": {"model": "tiny", "lora_rank": 8, "lora_dropout": 0.0, "max_new_tokens": 16},
}


def config(**changes: Any) -> RunConfig:
    """Tiny sizes, with ``changes``: a dictionary for a part, a value for a plain setting."""
    parts = {**{part: {} for part in SIZES}, **changes}
    default = RunConfig()
    return dataclasses.replace(
        default,
        **{
            key: dataclasses.replace(getattr(default, key), **{**SIZES.get(key, {}), **value})
            if isinstance(value, dict)
            else value
            for key, value in parts.items()
        },
    )


def tokenizer(
    chat_template: str | None = CHATML, eos: str = "<|endoftext|>"
) -> PreTrainedTokenizerFast:
    """One token per byte, so any text goes through it unchanged; 259 tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(list(SPECIAL_TOKENS))
    made = PreTrainedTokenizerFast(tokenizer_object=core, eos_token=eos, pad_token="<|endoftext|>")
    made.chat_template = chat_template
    return made


def llm(seed: int = 0) -> LlamaForCausalLM:
    """Two layers, 64 wide. Weights are large enough for adapters alone to make it certain."""
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=259, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
            initializer_range=0.2, bos_token_id=None, eos_token_id=256, pad_token_id=256,
        )
    )  # fmt: skip


def save_llm(folder: Path, seed: int = 0) -> Path:
    """Write the tiny model and its tokenizer as an ordinary model folder."""
    llm(seed).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def model(settings: RunConfig, seed: int = 0) -> BiSRQA:
    """A BiSRQA over the tiny model, in evaluation mode."""
    base = llm(seed)
    return BiSRQA(settings, Generator(base, tokenizer(), settings.generator), dim=DIM).eval()


def embed(texts: Sequence[str]) -> torch.Tensor:
    """Unit-norm rows that depend on nothing but the text."""
    rows = torch.empty(len(texts), DIM)
    for row, text in zip(rows, texts, strict=True):
        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
        row.copy_(torch.randn(DIM, generator=torch.Generator().manual_seed(seed)))
    return torch.nn.functional.normalize(rows, dim=-1)


def evidence(
    triples: Iterable[tuple[str, str, str]],
    topics: Sequence[str] = (),
    node_score: dict[str, float] | None = None,
) -> Evidence:
    """Keep all of ``triples``; edges fall in score as they stand, nodes by first mention.

    Args:
        triples: Head, relation, tail; without any, the evidence is empty.
        topics: Nodes that the question names.
        node_score: By name, for nodes whose score matters.
    """
    graph = from_triples([Triple(*t) for t in triples], embed)
    given = node_score or {}
    names = graph.node_text
    kinds = [
        Reason.TOPIC if n in topics else Reason.MEDIATOR if is_bare_id(n) else Reason.TOP_K
        for n in names
    ]
    return Evidence(
        graph=dataclasses.replace(graph, x=graph.x.half(), relation_x=graph.relation_x.half()),
        node_ids=torch.arange(graph.num_nodes),
        edge_ids=torch.arange(graph.num_edges),
        node_score=torch.tensor([given.get(n, 0.5 / (i + 1)) for i, n in enumerate(names)]),
        edge_score=0.9 ** torch.arange(graph.num_edges),
        reason=torch.tensor([int(k) for k in kinds], dtype=torch.int8),
    )


def example(
    question: str,
    answers: Sequence[str] = ("Rome",),
    triples: Iterable[tuple[str, str, str]] = (),
    topics: Sequence[str] = (),
    id: str = "q",
) -> Example:
    """A question with the evidence that :func:`evidence` makes of ``triples``."""
    kept = evidence(triples, topics)
    found = len(set(answers) & set(kept.graph.node_text))
    return Example(
        question=Question(
            id=id, question=question, answers=tuple(answers), topics=tuple(topics), graph=()
        ),
        question_x=embed([question])[0].half(),
        evidence=kept,
        source_digest=hashlib.sha256(repr((question, answers, triples)).encode()).digest(),
        golds_in_graph=found,
        golds_in_evidence=found,
    )


def examples() -> list[Example]:
    """Eight questions: plain facts, two answers, a mediator, and one without any evidence."""
    born, within = "people.person.place_of_birth", "location.location.containedby"
    made = [
        example(
            f"where was {name} born", [city], [(name, born, city), (city, within, land)], [name]
        )
        for name, city, land in (
            ("Ada", "Rome", "Italy"),
            ("Bo", "Oslo", "Norway"),
            ("Cy", "Lima", "Peru"),
            ("Di", "Kyiv", "Ukraine"),
            ("Ed", "Cork", "Ireland"),
        )
    ]
    seas = [("Italy", "location.location.adjoins", sea) for sea in ("Ionian Sea", "Adria")]
    made.append(example("which seas touch Italy", ["Adria", "Ionian Sea"], seas, ["Italy"]))
    wedding = [
        ("Bo", "people.person.spouse_s", "m.01"),
        ("m.01", "people.marriage.spouse", "Di"),
        ("m.01", "people.marriage.from", "1990"),
    ]
    made.append(example("who married Bo", ["Di"], wedding, ["Bo"]))
    made.append(example("who wrote Emma", ["Jane"]))
    return [
        dataclasses.replace(e, question=dataclasses.replace(e.question, id=f"q{i}"))
        for i, e in enumerate(made)
    ]
