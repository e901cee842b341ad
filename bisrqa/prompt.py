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

from bisrqa import relations
from bisrqa.config import PromptConfig
from bisrqa.data.records import Question, is_bare_id
from bisrqa.examples import Example
from bisrqa.graph.tensors import NodeKind
from bisrqa.heads.base import Evidence
from bisrqa.retrieval.passages import is_structure
from bisrqa.retrieval.subgraph import Reason
from bisrqa.text import normalise, stated

IGNORE = -100
_BODY, _ANSWER = "@@bisrqa-body@@", "@@bisrqa-answer@@"


class Fact(NamedTuple):
    """One line of the hard prompt."""

    text: str
    edges: tuple[int, ...]
    """The edges that it states; a mediator's edges are stated together."""
    score: float
    """The best of its edges', or its passage's."""
    passages: tuple[int, ...] = ()
    """The passages that it is the text of."""
    place: int = 0
    """Where it is read among the lines that fit; lines of equal place stay in order."""


def lines_of(evidence: Evidence, config: PromptConfig) -> list[Fact]:
    """All that may be stated, best first: passages where there are some, and triples.

    Triples without passages, or ``evidence: triples``, are :func:`facts`.
    """
    if not evidence.passages or config.evidence == "triples":
        return facts(evidence, config.relation_names)
    reading = {node: at for at, node in enumerate(evidence.reading or evidence.passages)}
    texts = [
        Fact(
            " ".join(evidence.graph.node_text[node].split()),
            (),
            float(evidence.node_score[node]),
            (node,),
            reading[node],
        )
        for node in evidence.passages
    ]
    if config.evidence == "text":
        return texts
    triples = facts(evidence, config.relation_names)
    return texts + [fact._replace(place=len(texts)) for fact in triples]


def stated_golds(example: Example, lines: Sequence[Fact]) -> list[str]:
    """The golds that some lines of the prompt hold: as an end of a triple, or in a passage."""
    graph = example.evidence.graph
    ends = graph.edge_index[:, [edge for line in lines for edge in line.edges]]
    names = {graph.node_text[node] for node in ends.flatten().tolist()}
    texts = [normalise(line.text) for line in lines if line.passages]
    return [
        gold
        for gold in dict.fromkeys(example.question.answers)
        if not is_bare_id(gold)
        and (gold in names or any(stated(normalise(gold), text) for text in texts))
    ]


def facts(evidence: Evidence, relation_names: str = "short") -> list[Fact]:
    """Put the kept triples into words, best first.

    An edge between named nodes reads ``head | relation | tail``. The edges of a mediator become
    one line, from a topic or its best-scored neighbour: ``subject | relation | relation other,
    relation other``. Ids are never shown. What relations are called is :mod:`bisrqa.relations`'
    matter; with ``readable`` a mediator's line tells one direction of those that go both ways.
    """
    graph = evidence.graph
    name = [" ".join(text.split()) for text in graph.node_text]
    mediator = (graph.node_kind == NodeKind.MEDIATOR).tolist()
    edges = list(zip(*graph.edge_index.tolist(), graph.edge_type.tolist(), strict=True))
    relation = relations.names(
        [" ".join(text.split()) for text in graph.relation_text],
        relation_names,
        # What leads away from a mediator is clear from what leads to it.
        {(kind, mediator[tail]) for head, tail, kind in edges if not mediator[head]},
    )
    one_way = relation_names == "readable"
    score = evidence.edge_score.tolist()
    # Topics first, then by walk score: whom a mediator's line is about.
    standing = (-evidence.node_score + 2.0 * (evidence.reason != Reason.TOPIC)).tolist()

    groups: dict[tuple[bool, int], list[int]] = {}
    structure = is_structure(graph).tolist()
    for edge, (head, tail, _) in enumerate(edges):
        if structure[edge]:  # that a text names an entity is no fact
            continue
        joint = head if mediator[head] else tail
        groups.setdefault((True, joint) if mediator[joint] else (False, edge), []).append(edge)
    lines: dict[str, list[int]] = {}
    for (joined, joint), members in groups.items():
        if not joined:
            head, tail, kind = edges[joint]
            text = f"{name[head]} | {relation[kind]} | {name[tail]}"
        else:
            others: dict[int, list[tuple[str, bool]]] = {}
            # An edge to a further mediator has nobody to name.
            members = [e for e in members if not (mediator[edges[e][0]] and mediator[edges[e][1]])]
            for edge in members:
                head, tail, kind = edges[edge]
                others.setdefault(tail if head == joint else head, []).append(
                    (relation[kind], head == joint)
                )
            if len(others) < 2:
                continue
            subject = min(others, key=lambda node: (standing[node], node))
            about = _told(others[subject], False if one_way else None)
            rest = [
                f"{_told(uses, True if one_way else None)} {name[other]}"
                for other, uses in others.items()
                if other != subject
            ]
            text = f"{name[subject]} | {about} | {', '.join(rest)}"
        # Two mediators may say the same: one line states both.
        lines.setdefault(text, []).extend(members)
    stated = [Fact(t, tuple(m), max(score[edge] for edge in m)) for t, m in lines.items()]
    return sorted(stated, key=lambda fact: -fact.score)


def _told(uses: Sequence[tuple[str, bool]], away: bool | None) -> str:
    """Relations between a mediator and one of its ends.

    Args:
        uses: Their names, and whether they lead away from the mediator.
        away: Leave out those of the other direction, which say the same, where there are both.
    """
    wanted = [name for name, leads_away in uses if leads_away == away]
    return " / ".join(dict.fromkeys(wanted or [name for name, _ in uses]))


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

    def target(self, question: Question, order: random.Random | None = None) -> list[int]:
        """Tokens of the gold answers and the end token.

        As many whole answers as ``max_answer_tokens`` allows; at least one. Golds that are bare
        ids are left out; the result is empty where nothing else is known.

        Args:
            question: Its golds are written one a line, each distinct one once.
            order: Shuffles them; without it they stay in the order of the source.
        """
        golds: dict[str, str] = {}
        for gold in question.answers:
            if not is_bare_id(gold):
                golds.setdefault(normalise(gold), " ".join(gold.split()))
        answers = list(golds.values())
        if order is not None:
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
