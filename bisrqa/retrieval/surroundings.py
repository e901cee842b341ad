"""From the whole graph of a corpus of texts to a small one for each question."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bisrqa.graph.tensors import GraphTensors, ragged_range
from bisrqa.retrieval.passages import is_structure, links
from bisrqa.retrieval.segments import group_rank


class Surroundings(NamedTuple):
    """What stands around each passage, sorted once so that a step costs what it reaches."""

    entity: Int[Tensor, " links"]
    """Entities that passages name, by passage."""
    entity_ptr: Int[Tensor, " nodes_and_one"]
    """Where in ``entity`` each passage's are."""
    passage: Int[Tensor, " links"]
    """Passages that name entities, by entity."""
    passage_ptr: Int[Tensor, " nodes_and_one"]
    """Where in ``passage`` each entity's are."""
    edge: Int[Tensor, " edges"]
    """Edges, by the passage that they were read from or start at."""
    edge_ptr: Int[Tensor, " nodes_and_one"]
    """Where in ``edge`` each passage's are."""

    @classmethod
    def of(cls, graph: GraphTensors) -> "Surroundings":
        """Look at one text graph."""
        found, nodes = links(graph), graph.num_nodes
        source = torch.where(is_structure(graph), graph.edge_index[0], graph.edge_passage)
        return cls.sorted(found.passage, found.entity, source, nodes)

    @classmethod
    def sorted(
        cls,
        passage: Int[Tensor, " links"],
        entity: Int[Tensor, " links"],
        source: Int[Tensor, " edges"],
        num_nodes: int,
    ) -> "Surroundings":
        """From pairs of passage and entity, and the passage of each edge."""
        by_passage, by_entity, by_source = (
            torch.argsort(key, stable=True) for key in (passage, entity, source)
        )
        return cls(
            entity[by_passage], _ptr(passage, num_nodes),
            passage[by_entity], _ptr(entity, num_nodes),
            by_source, _ptr(source, num_nodes),
        )  # fmt: skip

    def expand(
        self,
        question: Int[Tensor, " pairs"],
        passage: Int[Tensor, " pairs"],
        hops: int,
        max_degree: int,
    ) -> tuple[Int[Tensor, " more"], Int[Tensor, " more"]]:
        """Passages within ``hops`` steps through shared entities, the given ones among them.

        Args:
            question: Number of the question that each passage is of.
            passage: Node ids.
            hops: Steps from passage to entity to passage.
            max_degree: An entity that more passages name joins nothing.

        Returns:
            Pairs of question and passage, each once, sorted.
        """
        nodes = len(self.entity_ptr) - 1
        seen = new = torch.unique(question * nodes + passage)
        for _ in range(hops):
            row, at = ragged_range(*_bounds(self.entity_ptr, new % nodes))
            near = torch.unique((new // nodes)[row] * nodes + self.entity[at])
            start, stop = _bounds(self.passage_ptr, near % nodes)
            some = stop - start <= max_degree
            row, at = ragged_range(start[some], stop[some])
            reached = torch.unique((near // nodes)[some][row] * nodes + self.passage[at])
            new = reached[~_among(reached, seen)]
            seen = torch.cat([seen, new]).sort().values
        return seen // nodes, seen % nodes

    def cut(
        self,
        graph: GraphTensors,
        question: Int[Tensor, " pairs"],
        passage: Int[Tensor, " pairs"],
        questions: int,
    ) -> GraphTensors:
        """The graphs of some passages for each question, side by side.

        Each holds the passages, in the order of their ids and behind the entities, and every edge
        that was read from one of them or starts there.

        Args:
            graph: That this was made of.
            question: Number of the question that each passage is of; pairs are sorted.
            passage: Node ids.
            questions: So many questions.
        """
        nodes, kinds = graph.num_nodes, max(graph.num_relations, 1)
        row, at = ragged_range(*_bounds(self.edge_ptr, passage))
        edge, whose = self.edge[at], question[row]
        order = torch.argsort(whose * max(graph.num_edges, 1) + edge)
        edge, whose = edge[order], whose[order]
        head, tail = graph.edge_index[:, edge]
        key = torch.unique(
            torch.cat([whose * nodes + head, whose * nodes + tail, question * nodes + passage])
        )
        relation = torch.unique(whose * kinds + graph.edge_type[edge])
        source = graph.edge_passage[edge]
        place = torch.searchsorted(key, whose * nodes + source)
        node = key % nodes
        return GraphTensors(
            x=graph.x[node].float(),
            node_text=tuple(graph.node_text[n] for n in node.tolist()),
            node_kind=graph.node_kind[node],
            edge_index=torch.searchsorted(
                key, torch.stack([whose * nodes + head, whose * nodes + tail])
            ),
            edge_type=torch.searchsorted(relation, whose * kinds + graph.edge_type[edge]),
            edge_passage=torch.where(source < 0, source, place),
            relation_x=graph.relation_x[relation % kinds].float(),
            relation_text=tuple(graph.relation_text[r] for r in (relation % kinds).tolist()),
            node_ptr=_ptr(key // nodes, questions),
            edge_ptr=_ptr(whose, questions),
            relation_ptr=_ptr(relation // kinds, questions),
        )


def best_of(
    score: Float[Tensor, " pairs"], question: Int[Tensor, " pairs"], k: int
) -> Int[Tensor, " some"]:
    """Places of each question's ``k`` best, in the order in which they stand."""
    return (group_rank(score, question) < k).nonzero().squeeze(1)


def _bounds(ptr: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    return ptr[rows], ptr[rows + 1]


def _ptr(group: Tensor, groups: int) -> Int[Tensor, " groups_and_one"]:
    count = torch.bincount(group, minlength=groups)
    return torch.cat([count.new_zeros(1), count.cumsum(0)])


def _among(values: Tensor, known: Tensor) -> Tensor:
    """Which values are among the known ones, which are sorted."""
    place = torch.searchsorted(known, values).clamp_max(max(len(known) - 1, 0))
    return known[place] == values if len(known) else torch.zeros_like(values, dtype=torch.bool)
