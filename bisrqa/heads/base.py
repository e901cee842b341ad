"""What a retrieval head takes and gives."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bisrqa.data.records import Question
from bisrqa.graph.tensors import GraphTensors
from bisrqa.retrieval.shared import SharedGraph


@dataclass(frozen=True, kw_only=True, eq=False)
class Evidence:
    """What a head kept of one question's graph, and why."""

    graph: GraphTensors
    """The kept subgraph; its edges are in order, best first."""
    node_ids: Int[Tensor, " nodes"]
    """Ids that the nodes had in the whole graph."""
    edge_ids: Int[Tensor, " edges"]
    """Ids that the edges had in the whole graph."""
    node_score: Float[Tensor, " nodes"]
    """Higher is better."""
    edge_score: Float[Tensor, " edges"]
    """Higher is better; falls along the edges."""
    reason: Int[Tensor, " nodes"]
    """Why each node was kept, as :class:`~bisrqa.retrieval.subgraph.Reason`."""
    passages: tuple[int, ...] = ()
    """Node ids (in ``graph``) of kept passages, best first."""


@runtime_checkable  # the type checks of the tests need it
class Head(Protocol):
    """Cuts the evidence for each question out of its graph."""

    def __call__(
        self,
        questions: Sequence[Question],
        question_x: Float[Tensor, "questions dim"],
        graph: GraphTensors | SharedGraph,
    ) -> list[Evidence]:
        """Answer for all questions at once.

        Args:
            questions: ``graph`` of the records is not read.
            question_x: Unit-norm embeddings.
            graph: A block-diagonal batch with a graph for each question, or one graph for all, on
                the same device as ``question_x``.
        """
        ...


def topic_mask(questions: Sequence[Question], graph: GraphTensors) -> Tensor:
    """Mark each question's topic entities in its own graph, as far as the graph has them."""
    names = [set(question.topics) for question in questions]
    batch = graph.node_batch.tolist()
    flags = [text in names[g] for text, g in zip(graph.node_text, batch, strict=True)]
    return torch.tensor(flags, dtype=torch.bool, device=graph.device)
