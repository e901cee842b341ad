"""Share of gold answers that retrieval keeps: ``recall.py --config FILE [--retriever.top_k K]``.

Over the questions of ``evaluation.split`` with a gold in their graph, without a language model.
"""

import sys
import time

from bisrqa import config as configs
from bisrqa import examples
from bisrqa.packaged import default_cache_dir


def main(words: list[str]) -> None:
    """Retrieve twice, so that the time is without embedding."""
    path = words[words.index("--config") + 1]
    config = configs.load(path, [w for w in words if w not in ("--config", path)])
    retriever = examples.Retriever(config, default_cache_dir(), progress=True)
    split = config.evaluation.split
    examples.load(config, split, retriever)
    started = time.perf_counter()
    found = examples.load(config, split, retriever)
    seconds = time.perf_counter() - started
    shares = [e.golds_in_evidence / e.golds_in_graph for e in found if e.golds_in_graph]
    print(f"top_k {config.retriever.top_k}: answer recall {sum(shares) / len(shares):.4f}", end="")
    print(f" (n {len(shares)}), {1000 * seconds / len(found):.1f} ms a question")


if __name__ == "__main__":
    main(sys.argv[1:])
