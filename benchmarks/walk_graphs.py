"""Synthetic graphs with questions, for timing the walk."""

from typing import Any, NamedTuple

import numpy as np
import torch

from bisrqa.walk import WalkGraph

QUESTIONS = 32


class Case(NamedTuple):
    """A graph with its questions, as plain arrays."""

    src: np.ndarray
    dst: np.ndarray
    rel: np.ndarray
    nodes: int
    relations: int
    p: np.ndarray
    """[questions, nodes] float64, rows sum to 1."""
    weight: np.ndarray
    """[questions, relations] float64, positive."""

    def prepared(self, *, both_ways: bool = False) -> WalkGraph:
        edges = torch.from_numpy(np.stack([self.src, self.dst]))
        return WalkGraph.from_edges(
            edges,
            torch.from_numpy(self.rel),
            self.nodes,
            num_relations=self.relations,
            both_ways=both_ways,
        )

    def doubled(self) -> "Case":
        """The same with every edge in both directions, for those that walk along edges only.

        A self-loop is one edge at its node, not two.
        """
        back = self.src != self.dst
        src, dst = np.r_[self.src, self.dst[back]], np.r_[self.dst, self.src[back]]
        return self._replace(src=src, dst=dst, rel=np.r_[self.rel, self.rel[back]])


def power_law(nodes: int, edges: int, relations: int = 5000, seed: int = 0) -> Case:
    """A directed graph with hubs, communities, dangling nodes and frequent relations.

    Out-degrees fall with exponent 1.6 and in-degrees with 1.15 (at most 0.5 % of the edges at one
    node), 15 % of the nodes lead nowhere, 60 % of the edges stay inside a community of 1,000, half
    of the relations are those of the community. Ids are shuffled, repeated triples dropped.
    """
    rng = np.random.default_rng(seed)
    out = rng.pareto(1.6, nodes) + 1
    out[rng.random(nodes) < 0.15] = 0
    into = rng.pareto(1.15, nodes) + 0.5
    into = np.minimum(into, 0.005 * into.sum())
    out, into = np.cumsum(out), np.cumsum(into)

    def draw(total: np.ndarray, low: Any, high: Any) -> np.ndarray:
        at = low + rng.random(edges) * (high - low)
        return np.minimum(np.searchsorted(total, at, side="right"), nodes - 1)

    src = draw(out, 0.0, out[-1])
    size = min(1000, nodes)
    first = src // size * size
    low, high = np.where(first > 0, into[first - 1], 0), into[np.minimum(first + size, nodes) - 1]
    local = rng.random(edges) < 0.6
    dst = draw(into, np.where(local, low, 0.0), np.where(local, high, into[-1]))
    often = np.cumsum((np.arange(relations) + 3.0) ** -1.1)
    rel = np.searchsorted(often, rng.random(edges) * often[-1], side="right")
    own = rng.random(edges) < 0.5
    rel[own] = (rel[own] + src[own] // size % 50 * (relations // 50)) % relations
    community = np.arange(nodes) // size
    shuffle = rng.permutation(nodes)
    triples = np.unique(
        (shuffle[src] * nodes + shuffle[dst]) * relations + rel.clip(max=relations - 1)
    )
    ends, rel = np.divmod(triples, relations)
    src, dst = np.divmod(ends, nodes)
    place = np.empty(nodes, np.int64)
    place[shuffle] = community

    width = 32
    centre = rng.standard_normal((community[-1] + 1, width), dtype=np.float32)
    x = centre[place] + rng.standard_normal((nodes, width), dtype=np.float32)
    asked = centre[rng.integers(0, len(centre), QUESTIONS)]
    asked = asked + 0.7 * rng.standard_normal((QUESTIONS, width), dtype=np.float32)
    kinds = rng.standard_normal((relations, width), dtype=np.float32)
    x, asked, kinds = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (x, asked, kinds))
    p = np.maximum(asked @ x.T, 0).astype(np.float64)
    weight = np.maximum(asked @ kinds.T, 0).astype(np.float64) * 4 + 0.05
    return Case(src, dst, rel, nodes, relations, p / p.sum(1, keepdims=True), weight)


def neighbourhoods(graphs: int, nodes: int = 2000, edges: int = 3000) -> list[Case]:
    """Tree-like graphs of WebQSP's size, both directions of every edge as an edge of its own."""
    rng = np.random.default_rng(1)
    cases = []
    for _ in range(graphs):
        child = np.arange(1, nodes)
        parent = (child * rng.random(nodes - 1) ** 2.2).astype(np.int64)
        extra = edges - len(child)
        src = np.r_[parent, (nodes * rng.random(extra) ** 2.5).astype(np.int64)]
        dst = np.r_[child, rng.integers(0, nodes, extra)]
        src, dst = rng.permutation(nodes)[np.stack([src, dst])]
        rel = (150 * rng.random(edges) ** 2).astype(np.int64)
        triples = np.unique(np.stack([src, dst, rel]), axis=1)
        src, dst, rel = triples[:, triples[0] != triples[1]]
        p = np.maximum(rng.standard_normal(nodes) * 0.1 + 0.05, 0)
        p[rng.choice(nodes, 20, replace=False)] += rng.random(20) * 0.6
        weight = np.maximum(rng.standard_normal(150) * 0.2 + 0.1, 0) + 0.02
        ends = np.r_[src, dst], np.r_[dst, src], np.r_[rel, rel + 150]
        cases.append(Case(*ends, nodes, 300, (p / p.sum())[None], np.r_[weight, weight][None]))
    return cases
