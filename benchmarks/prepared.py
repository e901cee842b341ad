"""What prepared data save: ``prepared.py --config FILE [--rounds 5] [--part.setting VALUE]``.

Retrieving for the first questions of ``data.train_split`` and tokenising what was found, with all
embeddings at hand, in turns with opening their shards and reading every question, in random order.
"""

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable

from transformers import AutoTokenizer

from bisrqa import config as configs
from bisrqa import examples
from bisrqa.packaged import default_cache_dir, resolve_model
from bisrqa.prepare import Preparation
from bisrqa.prompt import PromptBuilder


def main(words: list[str]) -> None:
    """Print milliseconds a question of both, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    own, rest = parser.parse_known_args(words)
    config, cache = configs.load(own.config, rest), default_cache_dir()
    split, limit = config.data.train_split, config.data.train_limit
    preparation = Preparation(config, cache, progress=True)
    tokenizer = AutoTokenizer.from_pretrained(resolve_model(config.generator.model, cache))
    builder = PromptBuilder(tokenizer, config.prompt, config.encoder.num_soft_tokens)
    preparation.tokenised(preparation.examples(split, limit), builder)
    retriever = examples.Retriever(config, cache)

    def anew() -> int:
        found = examples.load(config, split, retriever, limit=limit)
        return len(builder.words(found))

    def read() -> int:
        found = preparation.tokenised(preparation.examples(split, limit), builder)
        order = random.Random(0).sample(range(len(found)), len(found))
        return sum(bool(found[place].example.question.id) for place in order)

    def per_question(run: Callable[[], int]) -> float:
        started = time.perf_counter()
        count = run()
        return 1000 * (time.perf_counter() - started) / count

    pairs = [(per_question(anew), per_question(read)) for _ in range(own.rounds)]
    ratios = sorted(slow / fast for slow, fast in pairs)
    slow, fast = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(
        f"{limit or 'all'} questions of {split}: {slow:.2f} ms each anew, {fast:.2f} ms prepared; "
        f"{statistics.median(ratios):.1f} times as fast ({ratios[0]:.1f} to {ratios[-1]:.1f})"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
