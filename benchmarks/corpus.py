"""Expansion in a large corpus of texts: ``corpus.py [--chunks 1000000] [--triples 5000000]``.

Chunks and triples are drawn at random; entities as they are in texts: few are everywhere, most are
named once or twice (Zipf). Prints how long it takes, on one thread, to reach the neighbours of ten
seed chunks and to cut their graph out; and to organise 1,000 chunks with 5,000 triples, and one
component of 50,000, whole: expansion, spanning trees, order of reading.
"""

import argparse
import statistics
import time

import numpy as np
import torch

from bisrqa.graph.tensors import GraphTensors, NodeKind
from bisrqa.heads.kg2rag import expand, facts_of, reading_order
from bisrqa.retrieval.surroundings import Surroundings
from bisrqa.retrieval.trees import spanning_forest

SEEDS, ROUNDS, DIM = 10, 50, 16


def corpus(chunks: int, triples: int, seed: int = 0) -> GraphTensors:
    """Half as many entities as chunks; every chunk has a title and its share of the triples."""
    draw = np.random.default_rng(seed)
    entities = chunks // 2
    order = draw.permutation(entities)
    weight = 1 / np.arange(1, entities + 1) ** 0.8
    reach = np.cumsum(weight) / weight.sum()
    ends = order[np.searchsorted(reach, draw.random((2, triples))).clip(max=entities - 1)]
    source = entities + draw.integers(chunks, size=triples)
    title = np.stack([np.arange(entities, entities + chunks), draw.integers(entities, size=chunks)])
    nodes, edges = entities + chunks, triples + chunks
    kind = torch.full((nodes,), int(NodeKind.ENTITY), dtype=torch.int8)
    kind[entities:] = int(NodeKind.PASSAGE)
    relation = np.concatenate([draw.integers(50, size=triples), np.full(chunks, 50)])
    return GraphTensors(
        x=torch.zeros(nodes, DIM, dtype=torch.half),
        node_text=("",) * nodes,
        node_kind=kind,
        edge_index=torch.from_numpy(np.concatenate([ends, title], 1)),
        edge_type=torch.from_numpy(relation),
        edge_passage=torch.from_numpy(np.concatenate([source, np.full(chunks, -1)])),
        relation_x=torch.zeros(51, DIM, dtype=torch.half),
        relation_text=(*(f"r{i}" for i in range(50)), "titled"),
        node_ptr=torch.tensor([0, nodes]),
        edge_ptr=torch.tensor([0, edges]),
        relation_ptr=torch.tensor([0, 51]),
    )


def main() -> None:
    """Prepare once, then time one question after another."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunks", type=int, default=1_000_000)
    parser.add_argument("--triples", type=int, default=5_000_000)
    sizes = parser.parse_args()
    torch.set_num_threads(1)
    graph = corpus(sizes.chunks, sizes.triples)
    started = time.perf_counter()
    around = Surroundings.of(graph)
    print(f"prepared once in {time.perf_counter() - started:.1f} s")
    first, draw = graph.num_nodes - sizes.chunks, torch.Generator().manual_seed(0)
    print("| hops | max_degree | chunks reached | expand, ms | cut, ms |")
    print("|---|---|---|---|---|")
    for hops, degree in ((1, 1000), (1, 1_000_000), (2, 100)):
        rows = []
        for _ in range(ROUNDS):
            seeds = first + torch.randint(sizes.chunks, (SEEDS,), generator=draw)
            at = time.perf_counter()
            question, passage = around.expand(torch.zeros_like(seeds), seeds, hops, degree)
            reached = time.perf_counter()
            around.cut(graph, question[:300], passage[:300], 1)
            rows.append(
                (len(passage), 1000 * (reached - at), 1000 * (time.perf_counter() - reached))
            )
        count, expand, cut = (
            f"{statistics.median(some):.0f} ({min(some):.0f} to {max(some):.0f})"
            if place == 0
            else f"{statistics.median(some):.1f} ({min(some):.1f} to {max(some):.1f})"
            for place, some in enumerate(zip(*rows, strict=True))
        )
        print(f"| {hops} | {degree} | {count} | {expand} | {cut} |")
    for chunks, triples in ((1_000, 5_000), (10_000, 50_000)):
        small = corpus(chunks, triples)
        seeds = torch.zeros(small.num_nodes, dtype=torch.bool)
        seeds[-SEEDS:] = True
        weight = torch.rand(3 * triples + 2 * chunks, generator=draw)
        spent = sorted(_organise(small, seeds, weight) for _ in range(ROUNDS))
        print(
            f"{chunks} chunks, {triples} triples organised in {statistics.median(spent):.1f} ms "
            f"({spent[0]:.1f} to {spent[-1]:.1f})"
        )


def _organise(graph: GraphTensors, seeds: torch.Tensor, weight: torch.Tensor) -> float:
    at = time.perf_counter()
    facts = facts_of(graph)
    expand(facts, seeds, 1)
    weight = weight[: len(facts.head)]
    forest = spanning_forest(torch.stack([facts.head, facts.tail]), weight, graph.num_nodes)
    reading_order(forest, facts, weight, graph.num_nodes)
    return 1000 * (time.perf_counter() - at)


if __name__ == "__main__":
    main()
