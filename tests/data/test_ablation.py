"""What ablations take away, and that nothing else changes."""

import dataclasses

import pytest

from bisrqa import data
from bisrqa.config import DataConfig
from bisrqa.data.ablation import WORDS, ablate, hidden, paraphrase, without
from bisrqa.data.records import Question, Triple

GRAPH = tuple(
    Triple(*t)
    for t in [
        ("Ada", "people.person.place_of_birth", "Rome"),
        ("Rome", "location.location.containedby", "Italy"),
        ("Bo", "people.person.place_of_birth", "Rome"),
        ("Ada", "spouse", "Bo"),
    ]
)
ASKED = Question(id="q", question="where", answers=("Italy",), topics=("Ada",), graph=GRAPH)


def config(**changes) -> DataConfig:
    return DataConfig(source="quickstart", **changes)


def test_nothing_is_taken_away_by_default():
    assert ablate(ASKED, config()) == ASKED


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"topics": "off"}, "topics"),
        ({"answers": "removed"}, "graph"),
        ({"relations": "hidden"}, "graph"),
        ({"relations": "paraphrased"}, "graph"),
    ],
)
def test_only_what_is_named_changes(change, field):
    found = ablate(ASKED, config(**change))
    for f in dataclasses.fields(Question):
        same = getattr(found, f.name) == getattr(ASKED, f.name)
        assert same == (f.name != field), f.name


def test_no_triple_names_a_removed_answer():
    assert without(GRAPH, ["Rome"]) == (GRAPH[3],)
    kept = ablate(ASKED, config(answers="removed")).graph
    assert kept == (GRAPH[0], GRAPH[2], GRAPH[3])


def test_hidden_relations_still_tell_which_are_the_same():
    relations = [t.relation for t in hidden(GRAPH)]
    assert relations == ["relation 1", "relation 2", "relation 1", "relation 3"]


def test_paraphrases_are_other_words_and_always_the_same():
    assert paraphrase("people.person.place_of_birth") == "persons.individual.origin spot"
    assert paraphrase("film.film.directed_by") == "movie.movie.staged by"
    assert paraphrase("no such words here") == "no such words here"
    for old, new in WORDS.items():
        assert old != new


def test_relations_that_come_to_read_the_same_are_one_triple():
    twins = (Triple("a", "people.person.children", "b"), Triple("a", "people.person.child", "b"))
    asked = dataclasses.replace(ASKED, graph=twins)
    assert len(ablate(asked, config(relations="paraphrased")).graph) == 1


def test_reading_applies_them():
    plain, cut = (list(data.read(config(answers=a), "test", limit=5)) for a in ("kept", "removed"))
    for one, other in zip(plain, cut, strict=True):
        assert len(other.graph) < len(one.graph)
        golds = set(other.answers)
        assert not [t for t in other.graph if golds & {t.head, t.tail}]


@pytest.mark.parametrize("change", [{"answers": "removed"}, {"relations": "hidden"}])
def test_a_graph_for_all_questions_is_not_rewritten(change):
    with pytest.raises(ValueError, match=r"with data\.graph shared"):
        DataConfig(graph="shared", graph_path="x.parquet", **change)
