"""Names of relations: short ones, and as much more as tells them apart."""

import itertools
import random

import pytest
import tiny

from bisrqa.data.ablation import paraphrase
from bisrqa.facts import facts
from bisrqa.relations import names


def together(*relations: str) -> list[str]:
    """Readable names where all stand in the same places."""
    return names(relations, "readable", [(at, "") for at in range(len(relations))])


@pytest.mark.parametrize(
    ("relation", "expected"),
    [
        ("people.person.place_of_birth", "place of birth"),
        ("people.person.spouse_s", "spouses"),
        ("people.marriage.to", "to"),
        ("base.morelaw.ceasefire.w", "w"),
        ("base.aareas.schema.administrative_area.capital", "capital"),
        (paraphrase("people.person.place_of_birth"), "origin spot"),
        (paraphrase("american_football.football_team.current_roster"), "current roster"),
        ("place_of_birth", "place of birth"),
        ("relation 3", "relation 3"),
        ("was born in", "was born in"),
        ("lives in the U.S.", "lives in the U.S."),
        ("is the wife of Mr. Smith", "is the wife of Mr. Smith"),
        ("works in u.s.a", "works in u.s.a"),
        ("s", "s"),
        ("父亲", "父亲"),
    ],
)
def test_a_relation_reads_as_words(relation: str, expected: str) -> None:
    assert together(relation) == [expected]


def test_relations_that_would_read_the_same_take_in_what_stands_before() -> None:
    film = ("film.actor.film", "film.director.film", "film.film.genre")
    assert together(*film) == ["actor film", "director film", "genre"]
    deep = ("aa.xx.yy.zz", "bb.xx.yy.zz", "cc.ww.yy.zz", "yy.zz")
    assert together(*deep) == ["aa xx yy zz", "bb xx yy zz", "ww yy zz", "yy zz"]
    assert together("place_of_birth", "people.person.place_of_birth") == [
        "place of birth", "person place of birth",
    ]  # fmt: skip


def test_relations_that_share_no_place_may_read_the_same() -> None:
    two = ("film.actor.film", "film.director.film")
    assert names(two, "readable", [(0, "here"), (1, "there")]) == ["film", "film"]
    assert names(two, "readable", [(0, "here"), (1, "there"), (1, "here")]) == [
        "actor film", "director film",
    ]  # fmt: skip
    assert names(two, "short", [(0, ""), (1, "")]) == ["film", "film"]
    assert names(two, "full", [(0, ""), (1, "")]) == list(two)


@pytest.mark.parametrize("seed", range(20))
def test_different_names_stay_different(seed: int) -> None:
    rng = random.Random(seed)
    parts = ["aa", "bb", "cc_dd"]
    every = [".".join(p) for n in (1, 2, 3) for p in itertools.product(parts, repeat=n)]
    some = rng.sample(every, 12)
    found = together(*some)
    assert len(set(found)) == len(some)
    for relation, name in zip(some, found, strict=True):
        assert relation.replace(".", " ").replace("_", " ").endswith(name)
    order = rng.sample(range(12), 12)
    assert together(*(some[at] for at in order)) == [found[at] for at in order]


PLAYS = [
    ("Bo", "film.actor.film", "m.01"),
    ("m.01", "film.performance.actor", "Bo"),
    ("m.01", "film.performance.film", "Emma"),
    ("Emma", "film.film.starring", "m.01"),
    ("m.01", "film.performance.character", "Knightley"),
    ("Bo", "film.director.film", "Heat"),
]


def test_a_mediators_line_tells_one_direction() -> None:
    evidence = tiny.evidence(PLAYS, ["Bo"])
    assert [fact.text for fact in facts(evidence, "readable")] == [
        "Bo | film | film Emma, character Knightley",
        "Bo | film | Heat",  # another place: not over a mediator
    ]
    assert [fact.text for fact in facts(evidence)] == [
        "Bo | film / actor | film / starring Emma, character Knightley",
        "Bo | film | Heat",
    ]
    directed = [*PLAYS[:5], ("Bo", "film.director.film", "m.02"), ("m.02", "from", "1990")]
    assert [fact.text for fact in facts(tiny.evidence(directed, ["Bo"]), "readable")] == [
        "Bo | actor film | film Emma, character Knightley",
        "Bo | director film | from 1990",
    ]
    # Where there is one direction only, it is told, whichever it is.
    one = tiny.evidence([("m.01", "xx.y.actor", "Bo"), ("Emma", "xx.z.cast", "m.01")], ["Bo"])
    assert [fact.text for fact in facts(one, "readable")] == ["Bo | actor | cast Emma"]


def test_a_line_states_the_same_edges_however_it_reads() -> None:
    for example in tiny.examples():
        edges = [
            sorted(edge for fact in facts(example.evidence, style) for edge in fact.edges)
            for style in ("short", "readable", "full")
        ]
        assert edges[0] == edges[1] == edges[2]
