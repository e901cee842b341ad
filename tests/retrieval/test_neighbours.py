"""Links between passages, their best neighbours, and a ranker's features."""

import math
import random

import pytest
import tiny
import torch

from bisrqa.data.records import Chunk, Triple
from bisrqa.graph.tensors import GraphTensors, NodeKind
from bisrqa.graph.texts import from_texts
from bisrqa.ranker_training import weights
from bisrqa.retrieval.features import NAMES, Passages, features
from bisrqa.retrieval.passages import best_neighbour, is_structure, lend_to_entities, links
from bisrqa.retrieval.ranker import PassageRanker

WORDS = "Alpha Beta Gamma Delta Epsilon Zeta".split()


def text_graph(seed: int) -> GraphTensors:
    """Some paragraphs that name each other, some triples; a title may be missing or repeat."""
    rng = random.Random(seed)
    chunks = []
    for paragraph in range(rng.randint(1, 5)):
        title = rng.choice(["", *WORDS, *WORDS])
        for sentence in range(rng.randint(1, 3)):
            text = " ".join(rng.choice([*WORDS, "said", "that"]) for _ in range(5))
            chunks.append(Chunk(title, text, paragraph, sentence, sentence + 1))
    triples = [
        Triple(rng.choice(WORDS), rng.choice(["knows", "mentions"]), rng.choice([*WORDS, "Omega"]))
        for _ in range(rng.randint(0, 6))
    ]
    sources = [rng.randrange(len(chunks)) for _ in triples]
    return from_texts(chunks, triples, sources, tiny.embed).graph.check()


@pytest.mark.parametrize("seed", range(25))
def test_neighbours_by_a_plain_loop(seed):
    graph = text_graph(seed)
    found = links(graph)
    named: dict[int, set[int]] = {}
    title = dict(enumerate(range(graph.num_nodes)))
    for (head, tail), kind, passage in zip(
        graph.edge_index.T.tolist(), graph.edge_type.tolist(), graph.edge_passage.tolist(),
        strict=True,
    ):  # fmt: skip
        if graph.node_kind[head] == NodeKind.PASSAGE:
            named.setdefault(head, set()).add(tail)
            if graph.relation_text[kind] == "titled":
                title[head] = tail
        else:
            named.setdefault(passage, set()).update((head, tail))
    pairs = {(p, e) for p, some in named.items() for e in some}
    assert set(zip(found.passage.tolist(), found.entity.tolist(), strict=True)) == pairs
    score = torch.rand(graph.num_nodes, generator=torch.Generator().manual_seed(seed))
    value, shared = best_neighbour(score, found)
    lent = lend_to_entities(graph, score)
    for node in range(graph.num_nodes):
        of = [
            (float(score[p]), e)
            for p, e in pairs
            if e in named.get(node, ()) and title[p] != title[node]
        ]
        if graph.node_kind[node] == NodeKind.PASSAGE:
            assert float(value[node]) == pytest.approx(max((v for v, _ in of), default=-torch.inf))
            best = {e for v, e in of if v == pytest.approx(float(value[node]))}
            assert (int(shared[node]) in best) if of else shared[node] == -1
            assert lent[node] == score[node]
        else:
            expected = max((float(score[p]) for p, e in pairs if e == node), default=0)
            assert float(lent[node]) == pytest.approx(expected)


def test_a_triple_called_like_structure_is_a_fact():
    chunks = [Chunk("Alpha", "Beta.", 0, 0, 1)]
    graph = from_texts(chunks, [Triple("Alpha", "titled", "Beta")], [0], tiny.embed).graph
    assert is_structure(graph).tolist() == [False, True, True]
    assert links(graph).title[2] == 0


def features_of(graphs) -> torch.Tensor:
    graph = GraphTensors.collate(graphs)
    asked = [f"Where is Alpha and {'x' * i}?" for i in range(len(graphs))]
    question_x = tiny.embed(asked)
    count = int((graph.node_kind == NodeKind.PASSAGE).sum())
    lexical = torch.arange(count).float() % 3
    passages = Passages.of(graph, question_x, lexical)
    return features(graph, question_x, asked, passages, lexical=0.5)


def test_features_do_not_depend_on_company():
    graphs = [text_graph(seed) for seed in range(12)]
    together = features_of(graphs)
    assert together.shape[1] == len(NAMES)
    assert torch.isfinite(together).all()
    counts = [int((g.node_kind == NodeKind.PASSAGE).sum()) for g in graphs]
    # the first stays the first: its question and BM25 scores are the same
    alone = features_of(graphs[:1])
    assert torch.allclose(together[: counts[0]], alone, atol=1e-5)


def test_features_by_hand():
    chunks = [Chunk("Alpha", "It is in Beta.", 0, 0, 1), Chunk("Alpha", "Nothing.", 0, 1, 2),
              Chunk("Beta", "A town.", 1, 0, 1)]  # fmt: skip
    found = features_of([from_texts(chunks, [], [], tiny.embed).graph])
    row = {name: found[:, column].tolist() for column, name in enumerate(NAMES)}
    assert row["has a neighbour by title"] == [1, 0, 1]
    assert row["title in question"] == [1, 1, 0]  # "Where is Alpha ..."
    assert row["first of title"] == [1, 0, 1]
    assert row["place in title"] == pytest.approx([0, 0.2, 0])
    assert row["is mentioned"] == [0, 0, 1]
    assert row["has mentions"] == [1, 0, 0]
    base = row["lexical and dense"]
    expected = [base[2] - min(base), 0, base[0] - min(base)]
    assert row["neighbour by title"] == pytest.approx(expected, abs=1e-6)


def test_triples_change_only_what_is_said_of_entities():
    chunks = [Chunk("Alpha", "It is in Beta with Zed.", 0, 0, 1), Chunk("Gamma", "Zed.", 1, 0, 1),
              Chunk("Beta", "A town.", 2, 0, 1)]  # fmt: skip
    plain, with_triples = (
        features_of([from_texts(chunks, triples, [0] * len(triples), tiny.embed).graph])
        for triples in ([], [Triple("Zed", "was", "part of"), Triple("Alpha", "in", "Beta")])
    )
    by_entity = [number for number, name in enumerate(NAMES) if "by entity" in name]
    assert not plain[:, by_entity].any()
    assert with_triples[:, by_entity].any()
    same = [number for number in range(len(NAMES)) if number not in by_entity]
    assert torch.equal(plain[:, same], with_triples[:, same])


def test_what_was_always_the_same_in_training_does_not_count():
    torch.manual_seed(0)
    ranker, seen = PassageRanker(NAMES, 7).eval(), torch.randn(50, len(NAMES))
    seen[:, 3] = 2.0
    ranker.fit_scale(seen)
    changed = seen.clone()
    changed[:, 3] = -100.0
    assert torch.equal(ranker(changed), ranker(seen))
    assert not torch.equal(ranker(changed + 1), ranker(seen))


def test_of_a_marked_paragraph_the_best_sentence_counts_most():
    score = torch.tensor([[0.0], [math.log(3.0)], [9.0], [0.0]])
    supports = torch.tensor([True, True, False, True])
    fact = torch.tensor([0, 0, 0, 1])
    assert weights(score, supports, fact, 0.0).tolist() == [[1.0]] * 4
    assert weights(score, supports, fact, 1.0).squeeze(1).tolist() == pytest.approx(
        [0.25, 0.75, 1, 1]
    )
    assert weights(score, supports, fact, 0.5).squeeze(1).tolist() == pytest.approx(
        [0.625, 0.875, 1, 1]
    )


def test_a_ranker_is_saved_whole(tmp_path):
    torch.manual_seed(0)
    ranker = PassageRanker(NAMES, 7)
    ranker.mean.fill_(0.3)
    ranker.save(tmp_path / "r", {"trained_on": "x"})
    again = PassageRanker.load(tmp_path / "r", NAMES)
    values = torch.randn(5, len(NAMES))
    assert torch.equal(again(values), ranker.eval()(values))
    (tmp_path / "r" / "ranker.safetensors").write_bytes(b"x")
    with pytest.raises(ValueError, match="no trained ranker"):
        PassageRanker.load(tmp_path / "r", NAMES)
    (tmp_path / "s").mkdir()
    with pytest.raises(ValueError, match="no trained ranker"):
        PassageRanker.load(tmp_path / "s", NAMES)
    ranker.save(tmp_path / "t", {})
    header = tmp_path / "t" / "ranker.json"
    header.write_text(header.read_text().replace("cosine of title", "another"))
    with pytest.raises(ValueError, match="other features"):
        PassageRanker.load(tmp_path / "t", NAMES)
