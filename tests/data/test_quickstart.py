"""The quick-start questions against a plain walk over the facts, and what the splits promise."""

from collections import Counter

import pytest

from bisrqa.data import quickstart
from bisrqa.data.quickstart import PATHS, Path
from bisrqa.data.records import Question

SPLITS = ("train", "validation", "test")
SIZES = {"train": 2400, "validation": 100, "test": 200}


@pytest.fixture(scope="module", params=[0, 1])
def seed(request) -> int:
    return request.param


@pytest.fixture(scope="module")
def splits(seed) -> dict[str, list[Question]]:
    return {split: quickstart.load(split, seed) for split in SPLITS}


def path_of(question: Question) -> Path:
    """The one path that words a question like this."""
    (topic,) = question.topics
    found = [
        path
        for path in PATHS
        for phrasing in path.phrasings
        for name in (topic, f"the {topic}")
        if phrasing.format(name).casefold() == question.question.casefold()
    ]
    assert len(found) == 1, question
    return found[0]


def walk(topic: str, path: Path, triples) -> set[str]:
    """The ends of a path, one whole set of nodes a step."""
    nodes = {topic}
    for relation, inverse in path.steps:
        if inverse:
            nodes = {h for h, r, t in triples if r == relation and t in nodes}
        else:
            nodes = {t for h, r, t in triples if r == relation and h in nodes}
    return nodes


def test_facts_are_well_formed():
    facts = quickstart.facts()
    assert list(facts) == sorted(set(facts))
    assert all(part and part == part.strip() for fact in facts for part in fact)
    assert all(fact.head != fact.tail for fact in facts)
    for fact in facts:
        if fact.relation == "borders":
            assert fact._replace(head=fact.tail, tail=fact.head) in facts


@pytest.mark.parametrize(
    "relation",
    ["capital", "chemical symbol", "continent", "currency", "located in country", "subregion"],
)
def test_a_functional_relation_has_one_value(relation):
    heads = Counter(fact.head for fact in quickstart.facts() if fact.relation == relation)
    assert set(heads.values()) == {1}


@pytest.mark.parametrize(
    "fact",
    [
        ("Switzerland", "capital", "Bern"),
        ("Switzerland", "official language", "German"),
        ("Hamburg", "located in country", "Germany"),
        ("Japan", "currency", "Japanese Yen"),
        ("Brazil", "subregion", "South America"),
        ("Gallium", "discovered in", "France"),
        ("Sodium", "chemical symbol", "Na"),
        ("Polonium", "discovered by", "Marie Curie"),
        ("United Kingdom", "official language", "English"),
    ],
)
def test_a_known_fact_is_there(fact):
    assert fact in quickstart.facts()


def test_each_node_is_one_kind_of_thing():
    """Else "Georgia" the country and a city of that name would be one node."""
    kinds: dict[str, set[str]] = {}
    of_head = {"capital": "country", "borders": "country", "currency": "country"}
    of_head |= {"official language": "country", "subregion": "country"}
    of_head |= {"continent": "subregion", "located in country": "city", "time zone": "city"}
    of_tail = {"capital": "city", "borders": "country", "located in country": "country"}
    of_tail |= {"discovered in": "country", "subregion": "subregion"}
    for head, relation, tail in quickstart.facts():
        kinds.setdefault(head, set()).add(of_head.get(relation, "element"))
        kinds.setdefault(tail, set()).add(of_tail.get(relation, relation))
    assert {node: kind for node, kind in kinds.items() if len(kind) > 1} == {}


def test_paths_are_varied_and_worded():
    assert 20 <= len(PATHS) <= 30
    assert len({path.name for path in PATHS}) == len({path.steps for path in PATHS}) == len(PATHS)
    assert {len(path.steps) for path in PATHS} == {1, 2, 3}
    assert any(step.inverse for path in PATHS for step in path.steps)
    relations = {fact.relation for fact in quickstart.facts()}
    seen = {step.relation for path in PATHS if not path.held_out for step in path.steps}
    for path in PATHS:
        assert {step.relation for step in path.steps} <= relations
        assert len(set(path.phrasings)) >= 4
        assert all(phrasing.count("{}") == 1 for phrasing in path.phrasings)
        # A held-out path is a new combination, not a new relation.
        assert not path.held_out or {step.relation for step in path.steps} <= seen
        assert not path.held_out or len(path.steps) > 1


def test_sizes_groups_and_ids(splits):
    for split, questions in splits.items():
        assert len(questions) == SIZES[split]
        assert [question.id for question in questions] == [
            f"quick-{split}-{number:04d}" for number in range(1, SIZES[split] + 1)
        ]
        assert len({question.question for question in questions}) == len(questions)
    groups = Counter(question.group for question in splits["test"])
    assert groups == {"unseen_entity": 150, "unseen_path": 50}
    assert {q.group for split in ("train", "validation") for q in splits[split]} == {""}


def test_hops_and_paths_are_balanced_in_every_prefix(splits):
    train = [path_of(question) for question in splits["train"]]
    for part in (train, train[:400]):
        shares = Counter(len(path.steps) for path in part)
        for hops, share in ((1, 0.35), (2, 0.45), (3, 0.20)):
            assert shares[hops] / len(part) == pytest.approx(share, abs=0.08)
    counts = Counter(path.name for path in train if len(path.steps) == 2)
    assert max(counts.values()) - min(counts.values()) <= 1


def test_answers_are_those_of_a_plain_walk(splits):
    by_relation: dict[str, list] = {}
    for fact in quickstart.facts():
        by_relation.setdefault(fact.relation, []).append(fact)
    for questions in splits.values():
        for question in questions[:300]:
            path = path_of(question)
            near = [fact for step in path.steps for fact in by_relation[step.relation]]
            (topic,) = question.topics
            assert set(question.answers) == walk(topic, path, near), question.id
            assert 1 <= len(question.answers) == len(set(question.answers)) <= 8
            assert topic not in question.answers
            assert topic in question.question


def test_graphs_hold_the_gold_path_among_other_facts(splits):
    facts = set(quickstart.facts())
    for questions in splits.values():
        for question in questions:
            graph = question.graph
            assert len(graph) == len(set(graph)) <= 120
            assert set(graph) <= facts
            path = path_of(question)
            assert walk(question.topics[0], path, graph) == set(question.answers), question.id
            # Facts that the question does not ask for.
            asked = {step.relation for step in path.steps}
            assert sum(triple.relation not in asked for triple in graph) >= 5, question.id


def test_training_never_meets_what_is_held_out(splits, seed):
    held = quickstart.holdout(seed)
    assert not held.test & held.validation
    for split, hidden in (("train", held.test | held.validation), ("validation", held.test)):
        for question in splits[split]:
            assert not hidden & {*question.topics, *question.answers}, question.id
            assert not hidden & {node for h, _, t in question.graph for node in (h, t)}
    assert {topic for q in splits["test"] for topic in q.topics} <= held.test
    assert {topic for q in splits["validation"] for topic in q.topics} <= held.validation


def test_about_a_fifth_of_every_kind_is_held_out(seed):
    held = quickstart.holdout(seed)
    facts = quickstart.facts()
    for relation in ("currency", "chemical symbol"):  # One for each country, one for each element.
        names = {fact.head for fact in facts if fact.relation == relation}
        assert len(names & held.test) / len(names) == pytest.approx(0.20, abs=0.02)
        assert len(names & held.validation) / len(names) == pytest.approx(0.08, abs=0.02)
    # A country goes with its cities, an element with its discoverers.
    for head, relation, tail in facts:
        if relation in ("located in country", "capital", "discovered by"):
            assert (head in held.test) == (tail in held.test)
            assert (head in held.validation) == (tail in held.validation)


def test_held_out_paths_are_asked_in_their_group_only(splits):
    for questions in splits.values():
        for question in questions:
            assert path_of(question).held_out == (question.group == "unseen_path")
    asked = {path_of(q).name for q in splits["test"] if q.group == "unseen_path"}
    assert asked == {path.name for path in PATHS if path.held_out}


def test_the_seed_decides_everything(splits, seed):
    for split in SPLITS:
        assert quickstart.load(split, seed) == splits[split]
    assert quickstart.load("test", seed + 10) != splits["test"]


def test_many_seeds_give_full_splits():
    for seed in range(2, 6):
        assert len(quickstart.load("validation", seed)) == SIZES["validation"]
        assert len(quickstart.load("test", seed)) == SIZES["test"]


def test_an_unknown_split_is_refused():
    with pytest.raises(ValueError, match="train, validation, test, got 'dev'"):
        quickstart.load("dev")
