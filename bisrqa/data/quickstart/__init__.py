"""A small data set to start with: real facts on countries, cities and elements, made questions.

The facts ship with the package (``facts.json``; sources in ``NOTICE``, rebuilt by ``build.py``).
Questions follow the relation paths in :mod:`~bisrqa.data.quickstart.paths`. A fifth of the
countries (each with its cities) and of the elements (each with its discoverers) is kept out of
training altogether, and so are some paths, so that the test set asks for what was never seen.
Continents, subregions, languages, currencies, time zones and element families are shared.
"""

import hashlib
import json
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import chain

from bisrqa.data.quickstart.paths import PATHS, Path, Step
from bisrqa.data.records import Question, Triple

__all__ = ["PATHS", "Holdout", "Path", "Step", "facts", "holdout", "load"]

# group -> number of questions
SIZES: dict[str, dict[str, int]] = {
    "train": {"": 2400},
    "validation": {"": 100},
    "test": {"unseen_entity": 150, "unseen_path": 50},
}
HOP_SHARES = {1: 0.35, 2: 0.45, 3: 0.20}
TEST_SHARE = 0.20
VALIDATION_SHARE = 0.08
MAX_ANSWERS = 8
GRAPH_TRIPLES = (60, 120)  # A graph's size is drawn from this range.
MAX_ALIKE = 8  # Edges of one relation and direction at a node; a country has up to 40 cities.

# Countries that take an article within a sentence.
_ARTICLE = re.compile(
    r"(Bahamas|Central African|Comoros|Democratic Republic|Dominican|Federated States|Gambia|"
    r"Maldives|Marshall|Netherlands|Philippines|Republic of|Seychelles|Solomon|United )"
)

_Adjacency = dict[str, list[Triple]]


@dataclass(frozen=True, kw_only=True)
class Holdout:
    """Countries, cities, elements and discoverers kept out of training; the two are disjoint."""

    test: frozenset[str]
    validation: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class _Draft:
    path: Path
    topic: str
    answers: tuple[str, ...]
    gold: tuple[Triple, ...]
    text: str


def fingerprint() -> str:
    """Hash of the facts and of what makes questions of them."""
    digest = hashlib.sha256()
    for name in ("facts.json", "paths.py", "__init__.py"):
        digest.update((files("bisrqa.data.quickstart") / name).read_bytes())
    return digest.hexdigest()[:16]


@cache
def facts() -> tuple[Triple, ...]:
    """All facts, sorted."""
    text = (files("bisrqa.data.quickstart") / "facts.json").read_text(encoding="utf-8")
    return tuple(Triple(*fact) for fact in json.loads(text))


def load(split: str, seed: int = 0) -> list[Question]:
    """Make the questions of one split.

    Args:
        split: ``train``, ``validation`` or ``test``. The last has the groups ``unseen_entity``
            (known path, new topic) and ``unseen_path`` (both new); the others have none.
        seed: Decides what is held out, so splits fit together only if they share it.

    Returns:
        Questions in random order; a prefix is a sample of the same mix. Answers are all that the
        facts hold. A graph has the whole gold path and other facts around it. Training graphs
        hold no entity of the two other splits, validation graphs none of the test split.
    """
    if split not in SIZES:
        raise ValueError(f"split must be one of {', '.join(SIZES)}, got {split!r}")
    held = holdout(seed)
    hidden = {"train": held.test | held.validation, "validation": held.test, "test": frozenset()}
    visible = _adjacency(fact for fact in facts() if not hidden[split] & {fact.head, fact.tail})
    rng = random.Random(f"{seed}/{split}")
    drafts: list[tuple[str, _Draft]] = []
    for group, size in SIZES[split].items():
        paths = [path for path in PATHS if path.held_out == (group == "unseen_path")]
        queues = {path: _drafts(path, split, held, visible, rng) for path in paths}
        drafts += [(group, draft) for draft in _balanced(queues, size)]
    rng.shuffle(drafts)
    questions = []
    for number, (group, draft) in enumerate(drafts, 1):
        id_ = f"quick-{split}-{number:04d}"
        questions.append(
            Question(
                id=id_,
                question=draft.text,
                answers=draft.answers,
                topics=(draft.topic,),
                graph=_surroundings(draft, visible, random.Random(f"{seed}/{id_}")),
                group=group,
            )
        )
    return questions


@cache
def holdout(seed: int = 0) -> Holdout:
    """Draw the entities of the test and the validation split."""
    rng = random.Random(f"{seed}/holdout")
    test: set[str] = set()
    validation: set[str] = set()
    for clusters in (_countries(), _elements()):
        total = sum(size for size, _ in clusters)
        room = [(test, TEST_SHARE * total), (validation, VALIDATION_SHARE * total)]
        for size, members in rng.sample(clusters, len(clusters)):
            for place, (split, left) in enumerate(room):
                if size <= left:
                    split |= members
                    room[place] = (split, left - size)
                    break
    return Holdout(test=frozenset(test), validation=frozenset(validation))


def _countries() -> list[tuple[int, set[str]]]:
    """Each country with its cities; every one counts as 1."""
    members: dict[str, set[str]] = {
        fact.head: {fact.head} for fact in facts() if fact.relation == "subregion"
    }
    for fact in facts():
        if fact.relation == "located in country":
            members[fact.tail].add(fact.head)
    return [(1, cluster) for cluster in members.values()]


def _elements() -> list[tuple[int, set[str]]]:
    """Elements joined by a shared discoverer, with them; each counts as its number of elements."""
    clusters: list[tuple[int, set[str]]] = []
    for element in (fact.head for fact in facts() if fact.relation == "chemical symbol"):
        size = 1
        members = {element} | {
            fact.tail
            for fact in facts()
            if fact.head == element and fact.relation == "discovered by"
        }
        apart = []
        for other_size, other in clusters:
            if other & members:
                size, members = size + other_size, members | other
            else:
                apart.append((other_size, other))
        clusters = [*apart, (size, members)]
    return clusters


def _adjacency(triples: Iterable[Triple]) -> _Adjacency:
    """Node -> the triples it is head or tail of."""
    adjacency: _Adjacency = defaultdict(list)
    for triple in triples:
        adjacency[triple.head].append(triple)
        adjacency[triple.tail].append(triple)
    return adjacency


def _walks(
    node: str, steps: tuple[Step, ...], adjacency: _Adjacency
) -> Iterator[tuple[str, tuple[Triple, ...]]]:
    """All ways along the whole path: the end, and the triples passed."""
    if not steps:
        yield node, ()
        return
    (relation, inverse), *rest = steps
    for triple in adjacency.get(node, ()):
        start, end = (triple.tail, triple.head) if inverse else (triple.head, triple.tail)
        if start == node and triple.relation == relation:
            for answer, passed in _walks(end, tuple(rest), adjacency):
                yield answer, (triple, *passed)


def _drafts(
    path: Path, split: str, held: Holdout, visible: _Adjacency, rng: random.Random
) -> Iterator[_Draft]:
    """The questions of one path: every topic in its first wording, then in the second, ..."""
    whole = _whole()
    relation, inverse = path.steps[0]
    topics = {fact.tail if inverse else fact.head for fact in facts() if fact.relation == relation}
    if split == "train":
        topics -= held.test | held.validation
    else:
        topics &= held.test if split == "test" else held.validation
    usable = []
    for topic in rng.sample(sorted(topics), len(topics)):
        walks = list(_walks(topic, path.steps, whole))
        answers = {answer for answer, _ in walks}
        gold = tuple(dict.fromkeys(chain.from_iterable(passed for _, passed in walks)))
        # Answers that the topic gives away ("Mexico City" is in Mexico) test nothing.
        given_away = any(re.search(rf"\b{re.escape(answer)}\b", topic) for answer in answers)
        # A gold path through a hidden entity would leave its question without an answer.
        hidden = any(triple not in visible.get(triple.head, ()) for triple in gold)
        if 0 < len(answers) <= MAX_ANSWERS and not given_away and not hidden:
            usable.append((topic, tuple(sorted(answers)), gold, rng.randrange(len(path.phrasings))))
    for turn in range(len(path.phrasings)):
        for topic, answers, gold, first in usable:
            phrasing = path.phrasings[(first + turn) % len(path.phrasings)]
            text = phrasing.format(f"the {topic}" if _ARTICLE.match(topic) else topic)
            yield _Draft(
                path=path,
                topic=topic,
                answers=answers,
                gold=gold,
                text=text[0].upper() + text[1:],
            )


def _balanced(queues: dict[Path, Iterator[_Draft]], size: int) -> Iterator[_Draft]:
    """Take ``size`` drafts by the shares of the hop counts, in turns over the paths of each."""
    hops = sorted({len(path.steps) for path in queues})
    shares = [HOP_SHARES[hop] for hop in hops]
    taken = 0
    for place, hop in enumerate(hops):
        # What a hop count falls short of goes to the next one.
        upto = round(size * sum(shares[: place + 1]) / sum(shares))
        turns = [queue for path, queue in queues.items() if len(path.steps) == hop]
        while turns and taken < upto:
            draft = next(turns[0], None)
            turns = turns[1:] + ([turns[0]] if draft else [])
            if draft:
                taken += 1
                yield draft
    if taken < size:
        raise ValueError(f"only {taken} of {size} quick-start questions with this seed")


def _surroundings(draft: _Draft, visible: _Adjacency, rng: random.Random) -> tuple[Triple, ...]:
    """The gold path and facts around it, the nearest to it first, in random order."""
    limit = rng.randint(*GRAPH_TRIPLES)
    kept = dict.fromkeys(draft.gold)
    reached = {draft.topic}
    wave = [draft.topic]
    around = list(dict.fromkeys(chain.from_iterable((t.head, t.tail) for t in draft.gold)))
    while wave and len(kept) < limit:
        for node in wave:
            if len(kept) >= limit:
                break
            alike: Counter[tuple[str, bool]] = Counter()
            edges = visible[node]
            for triple in rng.sample(edges, len(edges)):
                kind = (triple.relation, triple.head == node)
                if len(kept) < limit and alike[kind] < MAX_ALIKE:
                    alike[kind] += 1
                    kept[triple] = None
        wave = [node for node in around if node not in reached]
        if not wave:
            ends = dict.fromkeys(chain.from_iterable((t.head, t.tail) for t in kept))
            wave = [node for node in ends if node not in reached]
            rng.shuffle(wave)
        reached |= set(wave)
    triples = list(kept)
    rng.shuffle(triples)
    return tuple(triples)


@cache
def _whole() -> _Adjacency:
    return _adjacency(facts())
