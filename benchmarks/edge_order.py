"""Gold answers in the first lines of the prompt, for several ways to score an edge.

``edge_order.py --config FILE [--retriever.top_k K]``; over all of ``evaluation.split``.
"""

import sys
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from bisrqa import config as configs
from bisrqa import examples
from bisrqa.examples import Example
from bisrqa.facts import facts
from bisrqa.graph.tensors import GraphTensors
from bisrqa.heads import base
from bisrqa.packaged import default_cache_dir

LINES = (5, 10, 20)


def flows(
    graph: GraphTensors, scores: Tensor, relation_weight: Tensor, question: Tensor, edge: Tensor
) -> tuple[Tensor, Tensor]:
    """Mass that crosses each kept edge in one step, from its head and from its tail."""
    weight = relation_weight[:, graph.edge_type]
    head, tail = graph.edge_index
    loop = head == tail
    total = torch.zeros_like(scores).index_add(1, head, weight)
    total = total.index_add(1, tail, torch.where(loop, 0.0, weight))
    rate = scores / torch.where(total == 0, 1.0, total)
    return (weight * rate[:, head])[0, edge], (weight * rate[:, tail])[0, edge]


def share(found: Iterable[Example]) -> list[float]:
    """Mean share of golds named in the first lines, over questions with a gold in the graph."""
    sums, count = [0.0] * len(LINES), 0
    for example in found:
        if not example.golds_in_graph:
            continue
        count += 1
        graph, golds = example.evidence.graph, set(example.question.answers)
        stated = facts(example.evidence)
        for place, lines in enumerate(LINES):
            edges = [edge for fact in stated[:lines] for edge in fact.edges]
            nodes = graph.edge_index[:, edges].flatten().tolist()
            sums[place] += len(golds & {graph.node_text[n] for n in nodes}) / len(golds)
    return [value / count for value in sums]


def main(words: list[str]) -> None:
    """One Markdown row for each score."""
    path = words[words.index("--config") + 1]
    config = configs.load(path, [w for w in words if w not in ("--config", path)])
    retriever = examples.Retriever(config, default_cache_dir(), progress=True)
    scores: dict[str, Callable[..., Tensor]] = {
        "flow, both ways": lambda *given: sum(flows(*given)),
        "smaller flow of both ways": lambda *given: torch.minimum(*flows(*given)),
        "weaker end x relation weight": base.edge_scores,
    }
    for name, score in scores.items():
        base.edge_scores = score  # what the head calls
        values = share(examples.load(config, config.evaluation.split, retriever))
        print(f"| {name} | {' | '.join(f'{value:.3f}'[1:] for value in values)} |")


if __name__ == "__main__":
    main(sys.argv[1:])
