"""Fusion of events: precision and recall on labelled pairs, and time against the number of events.

    .venv/bin/python benchmarks/fusion.py --data ../shared/data/crud_mini

The pairs are made of news: events of two near-copies of an article whose sentences are
much alike, but not equal, are the same;
events of different articles at the same place, with a participant in common, on other days are
different (hard negatives); so are two sentences of one article that share a participant.
"""

import argparse
import dataclasses
import itertools
import random
import time
from collections import defaultdict
from pathlib import Path

import torch

from bisrqa import config as configs
from bisrqa import fusion
from bisrqa.data import crud
from bisrqa.data.passages import Passage, chunks_of, sentences
from bisrqa.data.records import Chunk, Event
from bisrqa.extraction import Reader
from bisrqa.graph.embed import EmbeddingStore, store_of
from bisrqa.graph.events import alone, in_words
from bisrqa.packaged import default_cache_dir
from bisrqa.text import name_key
from bisrqa.times import Interval, written_on

Told = tuple[Chunk, Event]
ALIKE, LEADING = 0.6, 4
"""Sentences of near-copies with so much in common tell the same; so many of each are taken."""


def alike(one: Told, other: Told) -> float:
    """Share of the pairs of characters that the sentences of two events have in common."""
    ours, theirs = (
        {text[n : n + 2] for n in range(len(text) - 1)} for text in map(sentence_of, (one, other))
    )
    return len(ours & theirs) / max(len(ours | theirs), 1)


def sentence_of(told: Told) -> str:
    """The sentence of the chunk that has most of an event's name."""
    chunk, event = told
    return max(sentences(chunk.text), key=lambda text: len({*text} & {*event.name}) / len(text))


def passages(path: Path) -> tuple[list[Passage], list[tuple[str, str]]]:
    """Every article, and pairs of near-copies that are not the same text."""
    copies, found, pairs, texts = crud.Copies(), [], [], {}
    for article in crud.articles(path):
        head, body = crud.split(article.text)
        written = written_on(head)
        found.append(
            Passage("", tuple(sentences(body)), article.id, written.isoformat() if written else "")
        )
        texts[article.id] = "".join(body.split())
        earlier = copies.of(article.id, body)
        if earlier is not None and texts[earlier] != texts[article.id]:
            pairs.append((earlier, article.id))
    return found, pairs


def labelled(
    told: list[Told], copies: list[tuple[str, str]], count: int
) -> list[tuple[Told, Told, str]]:
    """Pairs and what they are: ``same``, ``other day``, ``same text``."""
    by_text: dict[str, list[Told]] = defaultdict(list)
    for chunk, event in told:
        by_text[chunk.source].append((chunk, event))
    pairs = []
    for one, other in copies:
        for first in by_text[one][:LEADING]:
            near = [(alike(first, second), second) for second in by_text[other]]
            likeness, second = max(near, key=lambda pair: pair[0], default=(0.0, first))
            if ALIKE <= likeness < 1:  # the sentence, with something changed
                pairs.append((first, second, "same"))
    copied = {name for pair in copies for name in pair}
    shuffled = random.Random(0)
    places: dict[tuple[str, str], list[Told]] = defaultdict(list)
    for chunk, event in told:
        if event.place and event.interval and chunk.source not in copied:
            for name in event.participants:
                places[name_key(event.place), name_key(name)].append((chunk, event))
    days = []
    for group in places.values():
        for one, other in itertools.combinations(group[:12], 2):
            a, b = Interval.of(one[1].interval), Interval.of(other[1].interval)
            if one[0].source != other[0].source and a and b and not a.meets(b):
                days.append((one, other, "other day"))
    texts = []
    for group in by_text.values():
        for one, other in itertools.combinations(group[:6], 2):
            shared = {*map(name_key, one[1].participants)} & {*map(name_key, other[1].participants)}
            if shared and one[1].name != other[1].name:
                texts.append((one, other, "same text"))
    for some in (days, texts):
        shuffled.shuffle(some)
        pairs += some[:count]
    return pairs


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=Path("../shared/data/crud_mini"))
    parser.add_argument("--config", default="configs/crud_mini.yaml")
    parser.add_argument("--count", type=int, default=300, help="negatives of each kind")
    parser.add_argument("--sizes", type=int, nargs="*", default=[10_000, 20_000, 50_000, 100_000])
    parser.add_argument("--show", type=int, default=0, help="print so many wrong verdicts")
    arguments = parser.parse_args()
    config, cache_dir = configs.load(arguments.config), default_cache_dir()
    store = store_of(config.embedder, cache_dir, config.embedder.text_prompt)
    if arguments.data.is_dir():
        print(pairs_table(arguments, config, store, cache_dir))
    if arguments.sizes:
        print(curve(arguments.sizes, config.fusion))


def pairs_table(
    arguments: argparse.Namespace, config: configs.RunConfig, store: EmbeddingStore, cache_dir: Path
) -> str:
    """Precision and recall of the whole way: near enough, a shared entity, and the judge."""
    found, copies = passages(arguments.data)
    chunks = list(chunks_of(found, config.data.chunks, config.data.window))
    read, _ = Reader(config.extraction, cache_dir)(chunks)
    told = [(chunk, event) for chunk, e in zip(chunks, read, strict=True) for event in e.events]
    pairs = labelled(told, copies, arguments.count)
    texts = [in_words(event) for pair in pairs for _, event in pair[:2]]
    store.fill(texts)
    x = store(texts).reshape(len(pairs), 2, -1)
    cosine = (x[:, 0] * x[:, 1]).sum(-1).tolist()
    counts = {kind: sum(p[2] == kind for p in pairs) for kind in ("same", "other day", "same text")}
    lines = [
        f"{counts} pairs",
        "",
        "| threshold | overlap | precision | recall | merged of other day | of same text |",
        "| --------: | ------: | --------: | -----: | ------------------: | -----------: |",
    ]
    for threshold, overlap in itertools.product((0.85, 0.9, 0.95), (0.5, 0.6, 0.7)):
        own = dataclasses.replace(config.fusion, threshold=threshold, overlap=overlap)
        rules, merged = fusion.Rules(own), dict.fromkeys(counts, 0)
        for (one, other, kind), near in zip(pairs, cosine, strict=True):
            merged[kind] += is_merged(rules, one, other, near, threshold)
        right = merged["same"]
        precision = right / max(sum(merged.values()), 1)
        lines.append(
            f"| {threshold} | {overlap} | {precision:.3f} | {right / counts['same']:.3f} | "
            f"{merged['other day']} | {merged['same text']} |"
        )
    rules = fusion.Rules(config.fusion)
    for (one, other, kind), near in list(zip(pairs, cosine, strict=True)):
        said = is_merged(rules, one, other, near, config.fusion.threshold)
        if arguments.show and said != (kind == "same"):
            arguments.show -= 1
            verdict = rules([(alone(0, one[1]), alone(1, other[1]), near)])[0]
            lines.append(f"{kind} {near:.3f} {verdict}\n  {one[1]}\n  {other[1]}")
    return "\n".join(lines)


def is_merged(
    rules: fusion.Rules, one: Told, other: Told, similarity: float, threshold: float
) -> bool:
    """Whether two events would become one."""
    names = [{name_key(n) for n in (*e.participants, e.place) if n} for _, e in (one, other)]
    if similarity < threshold or not names[0] & names[1]:
        return False
    verdict, _ = rules([(alone(0, one[1]), alone(1, other[1]), similarity)])[0]
    return verdict == "same"


def curve(sizes: list[int], config: configs.FusionConfig) -> str:
    """Seconds for events whose embeddings are random but come in pairs, by both searches."""
    lines = [
        "",
        "| events | index: seconds | all pairs: seconds | candidates |",
        "| -----: | -------------: | -----------------: | ---------: |",
    ]
    for size in sizes:
        torch.manual_seed(0)
        centre = torch.randn(size // 2, 384)
        x = torch.cat([centre, centre + 0.3 * torch.randn_like(centre)])
        x = torch.nn.functional.normalize(x, dim=-1)
        events = [
            (
                Chunk("", "", number, 0, 1, str(number)),
                Event(f"event {number % (size // 2)}", "", "", (f"name {number % (size // 2)}",)),
            )
            for number in range(size)
        ]
        row = [f"{size:,}"]
        for search in ("faiss", "torch"):
            own = dataclasses.replace(config, search=search, threshold=0.9)
            started = time.perf_counter()
            found = fusion.Fuser(own, fusion.Rules(own))(events, x)
            row.append(f"{time.perf_counter() - started:.1f}")
        lines.append(f"| {' | '.join(row)} | {len(found.decisions):,} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
