"""Alignment: which names are one entity, which never are, and that every merge is written down."""

from pathlib import Path

import pytest
import tiny
import torch

from bisrqa.config import AlignmentConfig
from bisrqa.data.records import Chunk, Triple
from bisrqa.graph.alignment import Aligner, numbers, read_aliases
from bisrqa.graph.texts import Merge, from_texts

CHUNKS = [Chunk("Leopold Godowsky", "He was a pianist.", 0, 0, 1),
          Chunk("World War II", "It began in 1939.", 1, 0, 1)]  # fmt: skip


def merged(triples: list[Triple], **settings) -> tuple[tuple[str, ...], tuple[Merge, ...]]:
    aligner = Aligner(AlignmentConfig(**settings), tiny.embed)
    built = from_texts(CHUNKS, triples, [0] * len(triples), tiny.embed, (), aligner)
    return built.graph.check().node_text[: -len(CHUNKS)], built.merges


def test_a_slip_of_the_pen_is_the_entity_and_is_written_down():
    names, merges = merged([Triple("Leopold Godowski", "played", "piano")], fuzzy=0.9)
    assert names == ("Leopold Godowsky", "World War II", "piano")
    assert merges == (Merge("Leopold Godowski", "Leopold Godowsky", "spelling 0.938"),)


def test_below_the_threshold_they_are_two():
    names, merges = merged([Triple("Leopold Godowski", "played", "piano")], fuzzy=0.95)
    assert "Leopold Godowski" in names
    assert not merges


@pytest.mark.parametrize(
    ("one", "other"),
    [("World War II", "World War I"), ("Apollo 11", "Apollo 13"), ("Henry IV", "Henry V"),
     ("1990 Cup", "1991 Cup"), ("Season 2nd", "Season 3rd")],
)  # fmt: skip
def test_numbers_keep_names_apart(one: str, other: str):
    def same(names):
        return torch.full((len(names), 4), 0.5)

    aligner = Aligner(AlignmentConfig(fuzzy=0.5, embedding=0.5), same)
    assert aligner([other], [one]) == [None]


def test_what_counts_as_a_number():
    assert numbers("Henry VIII of England, 1509, 2nd") == ("viii", "1509", "2nd")
    assert numbers("Civil Mix, Dim Vivid") == ("mix",)  # 1009, too


def test_names_join_earlier_names_and_do_not_drift():
    names = ["abcdefghij", "abcdefghix", "abcdefghxx", "abcdefgxxx"]
    found = Aligner(AlignmentConfig(fuzzy=0.85), tiny.embed)(names, [])
    # The third is near the second; but that is no name of its own any more.
    assert [match and match.known for match in found] == [None, names[0], None, names[2]]


def test_by_embedding_where_spelling_says_nothing():
    table = {"NYC": [1.0, 0.0], "Big Apple": [0.99, 0.14], "Rome": [0.0, 1.0]}

    def embed(names):
        return torch.tensor([table[name] for name in names])

    found = Aligner(AlignmentConfig(fuzzy=0.9, embedding=0.95), embed)(
        ["Big Apple", "Rome"], ["NYC"]
    )
    assert found[0] is not None
    assert (found[0].known, found[0].why[:9]) == ("NYC", "embedding")
    assert found[1] is None


def test_the_best_is_taken_not_the_first():
    found = Aligner(AlignmentConfig(fuzzy=0.6), tiny.embed)(["Martins"], ["Marlins", "Martin"])
    assert found[0] is not None
    assert found[0].known == "Martin"


def test_aliases(tmp_path: Path):
    (tmp_path / "a.tsv").write_text("WW2\tWorld War II\n\nPele\tnobody here\n", "utf8")
    names, merges = merged([Triple("ww2", "began", "1939"), Triple("Pele", "born", "1940")],
                           aliases=str(tmp_path / "a.tsv"))  # fmt: skip
    assert "ww2" not in names
    assert "Pele" in names
    assert merges == (Merge("WW2", "World War II", "listed as an alias"),)
    (tmp_path / "b.jsonl").write_text('["WW2", "World War II"]\n', "utf8")
    assert read_aliases(tmp_path / "b.jsonl") == (("WW2", "World War II"),)


def test_an_alias_of_a_name_that_only_a_triple_has(tmp_path: Path):
    (tmp_path / "a.tsv").write_text("NYC\tNew York City\n", "utf8")
    triples = [Triple("NYC", "in", "America"), Triple("new york city", "has", "parks")]
    names, merges = merged(triples, aliases=str(tmp_path / "a.tsv"))
    assert "NYC" not in names
    assert ("NYC", "new york city") in {(m.name, m.entity.lower()) for m in merges}


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.tsv", "one\n"), ("a.tsv", "a\t \n"), ("a.jsonl", "{\n"), ("a.jsonl", '["a"]\n')],
)
def test_broken_aliases_name_the_line(tmp_path: Path, name: str, text: str):
    (tmp_path / name).write_text("\n" + text, "utf8")
    with pytest.raises(ValueError, match=rf"alignment.aliases: .*{name}:2: "):
        read_aliases(tmp_path / name)


def test_an_absent_file_is_named():
    with pytest.raises(ValueError, match=r"alignment\.aliases: absent\.tsv"):
        read_aliases(Path("absent.tsv"))
