"""From records to :class:`GraphTensors`."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from bisrqa.data.records import Triple, is_bare_id
from bisrqa.graph.tensors import GraphTensors, NodeKind


def from_triples(
    triples: Iterable[Triple],
    embed: Callable[[Sequence[str]], Float[Tensor, "texts dim"]],
) -> GraphTensors:
    """Build one graph of named entities and mediators.

    Nodes and relations are numbered by first mention. Triples count once; parallel relations stay.

    Args:
        triples: Directed, by name; an unnamed Freebase id is a mediator.
        embed: Gives unit-norm rows for texts, as :class:`~bisrqa.graph.embed.EmbeddingStore` does.
    """
    triples = list(dict.fromkeys(triples))
    nodes: dict[str, int] = {}
    relations: dict[str, int] = {}
    rows = [
        (
            nodes.setdefault(t.head, len(nodes)),
            relations.setdefault(t.relation, len(relations)),
            nodes.setdefault(t.tail, len(nodes)),
        )
        for t in triples
    ]
    table = torch.tensor(rows, dtype=torch.long).reshape(-1, 3)
    mediator = torch.tensor([is_bare_id(name) for name in nodes], dtype=torch.bool)
    relation_x = embed(list(relations))
    x = relation_x.new_zeros(len(nodes), relation_x.shape[1])
    x[~mediator] = embed([name for name in nodes if not is_bare_id(name)])
    kind = torch.where(mediator, int(NodeKind.MEDIATOR), int(NodeKind.ENTITY)).to(torch.int8)
    return GraphTensors(
        x=x,
        node_text=tuple(nodes),
        node_kind=kind,
        edge_index=table[:, [0, 2]].T.contiguous(),
        edge_type=table[:, 1].contiguous(),
        edge_passage=torch.full((len(table),), -1),
        relation_x=relation_x,
        relation_text=tuple(relations),
        node_ptr=torch.tensor([0, len(nodes)]),
        edge_ptr=torch.tensor([0, len(table)]),
        relation_ptr=torch.tensor([0, len(relations)]),
    )


def texts_of(triples: Iterable[Triple]) -> Iterator[str]:
    """Every text that :func:`from_triples` will ask embeddings of, repeated as it comes."""
    for triple in triples:
        for name in (triple.head, triple.tail):
            if not is_bare_id(name):
                yield name
        yield triple.relation
