"""Which order of the triples brings golds into the prompt: ``attention_order.py --config FILE``.

MAIF is taught to attend to the answers on the training questions, and then orders the triples of
the test questions (``data.train_limit`` and ``evaluation.limit`` say of how many). No language
model is trained. Share of the questions with a gold in the graph that have one in the prompt, and
in its first 3 and 8 lines, after each pass over the training questions.
"""

import sys
from dataclasses import replace

import torch
from accelerate.utils import set_seed

from bisrqa import config as configs
from bisrqa import encoder_training, examples, generator
from bisrqa.model import BiSRQA, Prepared
from bisrqa.packaged import default_cache_dir
from bisrqa.report import grid

LINES = (3, 8)
ORDERS = ("by the walk", "attention to both ends", "attention to both ends and to the relation")


@torch.no_grad()
def shares(model: BiSRQA, questions: list[Prepared]) -> dict[str, list[float]]:
    """For each order: in the prompt, and in its first lines."""
    model.eval()
    counts = {order: [0] * (1 + len(LINES)) for order in ORDERS}
    for start in range(0, len(questions), 64):
        batch = questions[start : start + 64]
        fusion = model.fuse(batch)
        assert fusion is not None
        assert fusion.entity_attention is not None
        assert fusion.relation_attention is not None
        for row, prepared in enumerate(batch):
            evidence = prepared.example.evidence
            graph, golds = evidence.graph, set(prepared.example.question.answers)
            ends = fusion.entity_attention[row][graph.edge_index].sum(0)
            relation = fusion.relation_attention[row][graph.edge_type]
            for order, score in zip(
                ORDERS, (evidence.edge_score, ends, ends + relation), strict=True
            ):
                named = [
                    {
                        graph.node_text[n]
                        for e in line.fact.edges
                        for n in graph.edge_index[:, e].tolist()
                    }
                    for line in model.builder.fitting(prepared.words, score)
                ]
                for place, lines in enumerate((len(named), *LINES)):
                    counts[order][place] += any(golds & names for names in named[:lines])
    return {o: [100 * n / len(questions) for n in some] for o, some in counts.items()}


def main(words: list[str]) -> None:
    """One Markdown table."""
    path = words[words.index("--config") + 1]
    fixed = ["--encoder.structure", "true", "--encoder.condition_on_question", "true"]
    given = [w for w in words if w not in ("--config", path)]
    config = configs.load(path, [*fixed, "--training.encoder_learning_rate", "3e-4", *given])
    passes = max(1, config.training.encoder_epochs)
    once = replace(config, training=replace(config.training, encoder_epochs=1))
    cache_dir = default_cache_dir()
    retriever = examples.Retriever(config, cache_dir, progress=True)
    data = config.data
    train = examples.load(config, data.train_split, retriever, limit=data.train_limit)
    test = examples.load(config, "test", retriever, limit=config.evaluation.limit)
    set_seed(config.seed)
    llm = generator.load(config.generator, cache_dir, device=torch.device("cpu"))
    model = BiSRQA(config, llm, dim=retriever.dim)
    taught, asked = model.prepare(train), model.prepare([e for e in test if e.golds_in_graph])
    lines = [["order", "passes", "in the prompt", *(f"first {n}" for n in LINES), "n"]]
    for number in range(1, passes + 1):
        encoder_training.run(model, taught, once, progress=True)
        for order, some in shares(model, asked).items():
            cells = [f"{value:.1f}" for value in some]
            lines.append([order, str(number), *cells, str(len(asked))])
    print(grid(lines, texts=1))


if __name__ == "__main__":
    main(sys.argv[1:])
