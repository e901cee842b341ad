"""What the language model reads: evidence as text, chat template, places of the soft tokens.

    [chat template: instruction] [soft tokens] [facts, best first] [question] [answers, one a line]

The instruction comes first and is the same for all questions, so its key/value cache can be shared.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from bisrqa.config import PromptConfig
from bisrqa.data.records import Question, is_bare_id
from bisrqa.examples import Example
from bisrqa.facts import Fact, lines_of
from bisrqa.graph.tensors import NodeKind
from bisrqa.heads.base import Evidence
from bisrqa.text import normalise

IGNORE = -100
_BODY, _ANSWER = "@@bisrqa-body@@", "@@bisrqa-answer@@"


class Line(NamedTuple):
    """A fact as tokens."""

    fact: Fact
    ids: list[int]


class Words(NamedTuple):
    """Everything of an example that is text, as tokens; made once."""

    question: list[int]
    lines: list[Line]


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenBatch:
    """Left-padded prompts, with targets behind them in training."""

    input_ids: Int[Tensor, "questions tokens"]
    attention_mask: Int[Tensor, "questions tokens"]
    keep_soft: Bool[Tensor, "questions tokens"]
    """True where a soft token replaces the word embedding; in order."""
    labels: Int[Tensor, "questions tokens"]
    """Token ids of the answers, ``IGNORE`` elsewhere."""

    def to(self, device: torch.device) -> "TokenBatch":
        return TokenBatch(**{k: v.to(device, non_blocking=True) for k, v in vars(self).items()})

    def pin_memory(self) -> "TokenBatch":
        """The same in memory that a GPU can copy from on its own."""
        return TokenBatch(**{name: value.pin_memory() for name, value in vars(self).items()})


class PromptBuilder:
    """Builds the same tokens for training and for generation.

    Args:
        tokenizer: Its own chat template is used; a model without one gets plain text.
        config: Budgets and switches.
        num_soft_tokens: Places kept for soft tokens; 0 without a soft prompt.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, config: PromptConfig, num_soft_tokens: int
    ):
        self.config = config
        self._tokenizer = tokenizer
        self._num_soft = num_soft_tokens if config.soft_prompt else 0
        before, after, end = _template(tokenizer, config.instruction)
        self.prefix = tokenizer(before, add_special_tokens=False).input_ids
        self.suffix = tokenizer(after, add_special_tokens=False).input_ids
        # Some templates put white space in front of the token that ends a turn.
        stop = tokenizer(end.strip(), add_special_tokens=False).input_ids[:1]
        eos = cast(int | None, tokenizer.eos_token_id)
        if eos is None:
            raise ValueError(
                f"the tokenizer of {tokenizer.name_or_path} has no end-of-sequence token"
            )
        self.end = stop[0] if stop else eos
        self.stop_ids = sorted({self.end, eos})
        """Tokens that end a reply."""
        self._facts, self._no_facts, self._ask, self.newline = self._encode(
            ["Facts:\n", "Facts: none\n", "Question: ", "\n"]
        )

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return self._tokenizer

    def words(self, examples: Sequence[Example]) -> list[Words]:
        """Tokenise questions and facts, all in one call."""
        stated = [
            lines_of(e.evidence, self.config) if self.config.hard_prompt else [] for e in examples
        ]
        texts = [" ".join(e.question.question.split()) for e in examples]
        texts += [fact.text + "\n" for lines in stated for fact in lines]
        ids = iter(self._encode(texts))
        questions = [next(ids) for _ in examples]
        return [
            Words(question, [Line(fact, next(ids)) for fact in lines])
            for question, lines in zip(questions, stated, strict=True)
        ]

    def prompt(self, words: Words, edge_score: Float[Tensor, " edges"] | None = None) -> list[int]:
        """Prompt tokens without the soft ones, which go in at ``len(prefix)``.

        Args:
            words: Of one example.
            edge_score: Orders the facts in place of the walk's score.
        """
        body = []
        if self.config.hard_prompt:
            lines = self.fitting(words, edge_score)
            body = (
                self._facts + [i for line in lines for i in line.ids] if lines else self._no_facts
            )
        return [*self.prefix, *body, *self._ask, *words.question, *self.suffix]

    def length(self, words: Words) -> int:
        """Tokens of the whole prompt, with the soft ones."""
        return len(self.prompt(words)) + self._num_soft

    def fitting(
        self, words: Words, edge_score: Float[Tensor, " edges"] | None = None
    ) -> list[Line]:
        """The lines that make it into the prompt: whole ones, in ``config.order``.

        One that is too long for what is left is passed over.
        """
        lines, left = words.lines, self.config.max_prompt_tokens
        if edge_score is not None:
            score = edge_score.tolist()
            lines = sorted(
                lines, key=lambda line: -max((score[e] for e in line.fact.edges), default=math.inf)
            )
        chosen = []
        for line in lines:
            if len(line.ids) <= left:
                chosen.append(line)
                left -= len(line.ids)
        chosen.sort(key=lambda line: line.fact.place)
        if self.config.order == "random":  # another order of the same facts
            random.Random(repr(words.question)).shuffle(chosen)
        return chosen

    def target(
        self,
        question: Question,
        order: random.Random | None = None,
        told: Sequence[str] = (),
    ) -> list[int]:
        """Tokens of the gold answers and the end token.

        As many whole answers as ``max_answer_tokens`` allows; at least one. Golds that are bare
        ids are left out; the result is empty where nothing else is known.

        Args:
            question: Its golds are written one a line, each distinct one once.
            order: Shuffles them; without it they stay in the order of the source.
            told: Write these golds and no others, in their order, if there are any.
        """
        golds: dict[str, str] = {}
        for gold in told or question.answers:
            if not is_bare_id(gold):
                golds.setdefault(normalise(gold), " ".join(gold.split()))
        answers = list(golds.values())
        if order is not None and not told:
            order.shuffle(answers)
        if not answers:
            return []
        pieces, left = [], self.config.max_answer_tokens - 1
        newline, encoded = self.newline, self._encode(answers)
        for ids in encoded:
            cost = len(ids) + (len(newline) if pieces else 0)
            if cost <= left:
                pieces.append(ids)
                left -= cost
        pieces = pieces or [min(encoded, key=len)]
        joined = pieces[0] + [i for ids in pieces[1:] for i in (*newline, *ids)]
        return [*joined, self.end]

    def names(self, evidence: Evidence) -> dict[str, list[int]]:
        """The named nodes that were kept, as lines of a target: the tokens of each name."""
        graph = evidence.graph
        named = (graph.node_kind == NodeKind.ENTITY).nonzero()[:, 0].tolist()
        texts = list(dict.fromkeys(" ".join(graph.node_text[node].split()) for node in named))
        return dict(zip(texts, self._encode(texts), strict=True)) if texts else {}

    def collate(
        self,
        prompts: Sequence[list[int]],
        targets: Sequence[list[int]] | None = None,
        *,
        skip: int = 0,
    ) -> TokenBatch:
        """Left-pad prompts (and targets) into one batch, with room for the soft tokens.

        Args:
            prompts: What :meth:`prompt` gave.
            targets: What :meth:`target` gave.
            skip: Leave out so many tokens of the prefix, from its start.
        """
        prompts = [p[skip:] for p in prompts]
        soft, at, pad = self._num_soft, len(self.prefix) - skip, self._tokenizer.pad_token_id or 0
        targets = [[] for _ in prompts] if targets is None else targets
        rows = [
            [*p[:at], *[pad] * soft, *p[at:], *t] for p, t in zip(prompts, targets, strict=True)
        ]
        width = max(map(len, rows))
        start = torch.tensor([width - len(row) for row in rows])[:, None]
        position = torch.arange(width)[None]
        target_start = width - torch.tensor([len(t) for t in targets])[:, None]
        ids = torch.tensor([[pad] * (width - len(row)) + row for row in rows])
        return TokenBatch(
            input_ids=ids,
            attention_mask=(position >= start).long(),
            keep_soft=(position >= start + at) & (position < start + at + soft),
            labels=ids.masked_fill(position < target_start, IGNORE),
        )

    def _encode(self, texts: list[str]) -> list[list[int]]:
        """Tokens of plain text: a special token spelled out in the data stays text."""
        return self._tokenizer(texts, add_special_tokens=False, split_special_tokens=True).input_ids


def _template(tokenizer: PreTrainedTokenizerBase, instruction: str) -> tuple[str, str, str]:
    """The text before and after the user's words, and what follows the reply."""
    if not tokenizer.chat_template:
        start, end = str(tokenizer.bos_token or ""), str(tokenizer.eos_token or "")
        return f"{start}{instruction}\n\n", "\nAnswer:\n", end
    import jinja2

    def render(system: bool, **options) -> str:
        user = _BODY if system else f"{instruction}\n\n{_BODY}"
        messages = [{"role": "system", "content": instruction}] if system else []
        messages.append({"role": "user", "content": user})
        if not options.get("add_generation_prompt"):
            messages.append({"role": "assistant", "content": _ANSWER})
        # Reasoning models are asked to answer at once, and templates that print today's date get
        # the same one every day; others do not know these words.
        options |= {"enable_thinking": False, "date_string": "26 Jul 2024"}
        return str(tokenizer.apply_chat_template(messages, tokenize=False, **options))

    try:
        asked = render(True, add_generation_prompt=True)
    except jinja2.TemplateError:
        asked = ""
    # Some templates refuse a system message, others leave it out.
    system = bool(asked) and instruction.strip() in asked
    if not system:
        asked = render(False, add_generation_prompt=True)
    before, found, after = asked.partition(_BODY)
    if not found:
        raise ValueError(f"the chat template of {tokenizer.name_or_path} drops the user's words")
    return before, after, render(system).partition(_ANSWER)[2]
