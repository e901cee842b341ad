"""Two contexts side by side: ``contexts.py --config FILE [--questions 2] [--setting value ...]``.

On the left the nearest chunks, best first; on the right what KG2RAG keeps, in the order in which it
is read. Chunks with a supporting fact are bold. The first questions are taken whose supporting
facts are all on the right and not all on the left.
"""

import sys

from bisrqa import config as configs
from bisrqa import data
from bisrqa.examples import Example, Retriever
from bisrqa.facts import lines_of
from bisrqa.packaged import default_cache_dir
from bisrqa.text_recall import facts_of_chunk, support

KEPT = 5


def main(words: list[str]) -> None:
    """Print the tables."""
    at = words.index("--config")
    file, rest = words[at + 1], words[:at] + words[at + 2 :]
    wanted = 2
    if "--questions" in rest:
        at = rest.index("--questions")
        wanted, rest = int(rest[at + 1]), rest[:at] + rest[at + 2 :]
    rest += ["--retriever.passages", str(KEPT)]
    both = [configs.load(file, [*rest, "--head", head]) for head in ("dense", "kg2rag")]
    retrievers = [Retriever(config, default_cache_dir()) for config in both]
    questions = list(data.read(both[0].data, both[0].evaluation.split))
    pairs = zip(*(retriever(questions) for retriever in retrievers), strict=True)
    for left, right in pairs:
        recall = [support(e.question, e.chunks_found[:KEPT])[1] for e in (left, right)]
        if recall[1] == 1 > recall[0] and wanted:
            wanted -= 1
            columns = [_lines(e, config) for e, config in zip((left, right), both, strict=True)]
            print(f"\n*{left.question.question}* ({', '.join(left.question.answers)})\n")
            print("| nearest chunks | KG2RAG |\n| --- | --- |")
            for one, other in zip(*columns, strict=True):
                print(f"| {one} | {other} |")


def _lines(example: Example, config: configs.RunConfig) -> list[str]:
    question, evidence = example.question, example.evidence
    golds = set(question.support)
    right = {chunk.words for chunk in question.chunks if golds & facts_of_chunk(chunk, question)}
    lines = sorted(lines_of(evidence, config.prompt), key=lambda fact: fact.place)
    texts = [evidence.graph.node_text[node] for fact in lines for node in fact.passages]
    return [f"**{text}**" if text in right else text for text in texts]


if __name__ == "__main__":
    main(sys.argv[1:])
