import gzip
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

from bisrqa.bootstrap import Share, Tally, paired
from bisrqa.metrics import (
    PRESETS,
    full_panel,
    g_retriever,
    gcr,
    gnn_rag,
    names,
    one_to_one,
    panel,
    rog,
    score_file,
    strict,
    subgraphrag,
)
from bisrqa.predictions import read_predictions, split_answers, split_golds

ROOT = Path(__file__).parent.parent
GOOD = {"id": "q1", "prediction": "Paris\nRome", "ground_truth": ["Paris"]}


def close(**scores):
    return pytest.approx(scores)


def without_wrong(scores):
    """All but ``totally_wrong``, the only score of which less is better."""
    return {name: value for name, value in scores.items() if not name.endswith("totally_wrong")}


def write(path, *records):
    lines = [r if isinstance(r, str) else json.dumps(r, ensure_ascii=False) for r in records]
    data = "".join(line + "\n" for line in lines).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def test_split():
    assert split_answers("A\n\nB") == split_answers(["A", "", "B"]) == ["A", "", "B"]
    assert split_answers(["A\nB", "C"]) == ["A", "B", "C"]
    assert split_answers("A\u2028B\x85C") == ["A\u2028B\x85C"]  # only a newline separates
    assert split_answers("") == [""]
    assert split_answers([]) == []
    assert split_golds("A\n\nB\n") == ["A", "B"]
    assert split_golds(["A", "A"]) == ["A", "A"]


def test_rog_by_hand():
    assert rog(["Paris", "Rome"], ["Paris"]) == close(recall=1, hit=1, precision=0.5, f1=2 / 3)
    # One line that names three golds has precision 3, and F1 = 2*3*1/4.
    assert rog(["A1 B1 C1"], ["A1", "B1", "C1"]) == close(recall=1, hit=1, precision=3, f1=1.5)
    # Blank and repeated lines count, and so do repeated golds: 2 of 3 golds, 4 lines.
    lines, golds = ["Paris", "", "Paris", "Rome"], ["Paris", "Paris", "Oslo"]
    assert rog(lines, golds) == close(recall=2 / 3, hit=1, precision=0.5, f1=4 / 7)
    assert rog(["New", "York"], ["New York"])["hit"] == 1  # found across lines
    assert rog(["Oslo"], ["Paris"]) == close(recall=0, hit=0, precision=0, f1=0)


def test_gnn_rag_by_hand():
    assert gnn_rag(["It is Paris.", "Rome"], ["Paris"]) == close(hit1=1)
    assert gnn_rag(["Rome", "Paris"], ["Paris"]) == close(hit1=0)
    assert gnn_rag(["", " ", "Paris"], ["Paris"]) == close(hit1=1)  # the prediction is stripped
    assert gnn_rag(["...", "Paris"], ["Paris"]) == close(hit1=0)  # but that is a line


def test_gcr_by_hand():
    # Three distinct lines, two of which hold Paris; one of two distinct golds found.
    lines, golds = ["Paris", "in Paris", "", "Rome", "Rome "], ["Paris", "Paris", "Oslo"]
    assert gcr(lines, golds) == close(recall=0.5, precision=2 / 3, f1=4 / 7)
    assert gcr(["A1 B1 C1"], ["A1", "B1", "C1"]) == close(recall=1, precision=1, f1=1)
    # Found across lines: recall, but no line is right.
    assert gcr(["New", "York"], ["New York"]) == close(recall=1, precision=0, f1=0)
    # Golds are distinct as written: "Paris" and "paris" are two.
    assert gcr(["Paris"], ["Paris", "paris", "Oslo"])["recall"] == pytest.approx(2 / 3)


def test_one_to_one_by_hand():
    assert one_to_one(["Paris", "Rome", "Rome"], ["Rome", "Paris"]) == close(f1=1, em=1)
    # A line answers one gold: 1 of 1 lines, 1 of 3 golds.
    assert one_to_one(["A1 B1 C1"], ["A1", "B1", "C1"]) == close(f1=0.5, em=0)
    # The long gold takes the long line and leaves the short line to the short gold.
    assert one_to_one(["York", "New York"], ["York", "New York"]) == close(f1=1, em=1)
    # Greedy, not optimal: "ab" takes the longer "ab cd", so "cd" finds none.
    assert one_to_one(["ab cd", "ab"], ["ab", "cd"]) == close(f1=0.5, em=0)


def test_g_retriever_by_hand():
    # Three pieces, one gold of two found.
    assert g_retriever(["Paris|Rome", "Oslo"], ["Paris", "Lima"]) == close(
        recall=0.5, hit=1, precision=1 / 3, f1=0.4
    )
    assert g_retriever(["Paris", "Rome"], ["Rome"]) == rog(["Paris", "Rome"], ["Rome"])
    # A gold that holds the separator is one gold, and its parts in order are its answer.
    assert g_retriever(["AC|DC"], ["AC|DC"]) == close(recall=1, hit=1, precision=0.5, f1=2 / 3)
    assert g_retriever(["AC", "other"], ["AC|DC"])["hit"] == 0
    assert g_retriever(["Paris"], ["|"])["hit"] == 0  # normalises to nothing


def subgraph_rag(lines, golds, question=""):
    """Its scores, the sums of micro scores apart."""
    scores = subgraphrag(lines, golds, question)
    counts = [scores.pop(f"micro_{name}") for name in ("precision", "recall", "f1")]
    return scores, counts


def test_subgraphrag_by_hand():
    # Two answers of which one is right, three golds. Lines without the marker are talk.
    lines = ["I think that", "ans: Rome", "ans: Paris", "ans: Paris", "Lima"]
    scores, counts = subgraph_rag(lines, ["Paris", "Oslo", "Lima"])
    assert scores == close(precision=0.5, recall=1 / 3, f1=0.4, em=0, hit1=0, totally_wrong=0)
    assert counts == [Share(1, 2), Share(1, 3), Share(2, 5)]
    scores, _ = subgraph_rag(["ans: Paris"], ["Paris"])
    assert scores == close(precision=1, recall=1, f1=1, em=1, hit1=1, totally_wrong=0)
    # Without any marker: as one_to_one, with the first line for hit1.
    scores, _ = subgraph_rag(["Paris", "Rome"], ["Rome", "Paris"])
    assert scores == close(precision=1, recall=1, f1=1, em=1, hit1=1, totally_wrong=0)
    # The end of a word is no marker.
    assert subgraph_rag(["Olympians: Rome", "Paris"], ["Paris"])[0]["recall"] == 1


@pytest.mark.parametrize(
    "line", ["ans: None", "ans: Nonesuch", "ans: not available", "ans: No information available"]
)
def test_subgraphrag_takes_abstaining_for_no_answer(line):
    scores, counts = subgraph_rag([line], ["Nonesuch"])
    assert scores == close(precision=0, recall=0, f1=0, em=0, hit1=0, totally_wrong=1)
    assert counts == [Share(0, 0), Share(0, 1), Share(0, 1)]
    scores, _ = subgraph_rag([line, "ans: Paris"], ["Paris"])
    assert scores["em"] == scores["hit1"] == 1


def test_subgraphrag_accepts_part_of_a_gold_for_some_questions():
    lines, golds = ["ans: English"], ["English Language"]
    assert subgraph_rag(lines, golds, "Which LANGUAGE is it?")[0]["em"] == 1
    assert subgraph_rag(lines, golds, "Which one is it?")[0]["em"] == 0
    assert subgraph_rag(lines, golds)[0]["em"] == 0
    # A date counts by its year, where the question asks for when.
    assert subgraph_rag(["in 1990"], ["1990-05-01"], "what year was it")[0]["em"] == 1
    assert subgraph_rag(["in 1990"], ["1990-05-01"], "which one was it")[0]["em"] == 0
    # A line of nothing but the marker is part of no gold.
    assert subgraph_rag(["ans:"], ["Paris"], "where is it")[0]["totally_wrong"] == 1


def test_micro_scores_divide_sums():
    records = [
        {"prediction": "ans: A1\nans: B1", "ground_truth": ["A1"]},
        {"prediction": "ans: none", "ground_truth": ["C1", "D1", "E1"]},
    ]
    scores = panel(records)
    # 1 of 2 lines, 1 of 4 golds; F1 = 2 * 1 / (2 + 4).
    micro = [scores[f"subgraphrag.micro_{name}"] for name in ("precision", "recall", "f1")]
    assert micro == [50.0, 25.0, 33.33]
    assert scores["subgraphrag.totally_wrong"] == 50.0
    assert "subgraphrag.f1" in names()
    assert "subgraphrag.micro_f1" not in names()


def test_strict_by_hand():
    lines = ["The Paris!", "paris", "---", "Rome"]  # two answers after normalising
    expected = close(precision=0.5, recall=0.5, f1=0.5, hit=1, em=0)
    assert strict(lines, ["Paris", "PARIS", "Oslo"]) == expected
    assert strict(["Rome", "Paris"], ["Paris", "Rome"]) == close(
        precision=1, recall=1, f1=1, hit=1, em=1
    )
    nothing = close(precision=0, recall=0, f1=0, hit=0, em=0)
    assert strict(["The answer is Paris"], ["Paris"]) == nothing


@pytest.mark.parametrize(
    ("line", "gold"),
    [
        ("Beyonce\u0301", "beyonc\u00e9"),
        ("beyonc\u00e9", "Beyonce\u0301"),
        ("北京", "北京"),
        ("القاهرة", "القاهرة"),
        ("m.0f2y0", "m.0f2y0"),
        ("AC|DC", "ac|dc"),
    ],
)
def test_other_scripts_accents_and_bare_ids(line, gold):
    for preset in PRESETS.keys() - {"g-retriever"}:  # which takes AC|DC for two answers
        right = panel([{"prediction": line, "ground_truth": [gold]}])
        found = {key: right[key] for key in right if key.startswith(f"{preset}.")}
        assert set(without_wrong(found).values()) == {100.0}, preset
    wrong = panel([{"prediction": "Fulton", "ground_truth": [gold]}])
    assert wrong.pop("n") == 1
    assert set(without_wrong(wrong).values()) == {0.0}


def test_a_gold_with_a_newline_is_one_gold():
    record = {"prediction": "New York\nOslo", "ground_truth": ["New\nYork", "Oslo"]}
    scores = panel([record])
    assert scores["strict.em"] == scores["subgraphrag.em"] == 100.0
    assert full_panel([record])["by_answers"]["2-4"]["n"] == 1


@pytest.mark.parametrize(
    "prediction", ["", " ", "\n\n", "\t\r\n", [], [""], ["", " "], "?!", "the"]
)
@pytest.mark.parametrize("golds", [["Paris"], ["Paris", "Rome"], ["?!"], ["", "The"]])
def test_an_empty_prediction_scores_zero(prediction, golds):
    scores = panel([{"prediction": prediction, "ground_truth": golds}])
    assert scores.pop("n") == 1
    assert set(without_wrong(scores).values()) == {0.0}


def test_a_gold_that_normalises_to_nothing_counts_but_never_matches():
    empty = {"prediction": "Paris\n?!", "ground_truth": ["?!"], "question": "where"}
    scores = panel([empty])
    assert scores.pop("n") == 1
    assert set(without_wrong(scores).values()) == {0.0}
    scores = panel([{"prediction": "Paris", "ground_truth": ["Paris", "?!"]}])
    recalls = [scores[f"{preset}.recall"] for preset in ("rog", "gcr", "strict")]
    assert recalls == [50.0, 50.0, 50.0]
    assert scores["strict.em"] == scores["one_to_one.em"] == 0.0


def test_panel_averages_percentages():
    right = {"prediction": ["Paris"], "ground_truth": "Paris\n"}
    wrong = {"prediction": "Oslo", "ground_truth": ["Paris"]}
    scores = panel(iter([right, wrong, wrong]))
    assert scores.pop("n") == 3
    assert scores.pop("subgraphrag.totally_wrong") == 66.67
    assert set(scores.values()) == {33.33}
    assert isinstance(panel([right])["n"], int)


def peak_bytes(code, *words):
    """Most memory that Python objects take while ``code`` runs, its imports apart.

    In a process of its own: in this one, checking types at every call takes memory too.
    """
    program = f"""
import itertools, sys, tracemalloc
from bisrqa import metrics
records = ({{"prediction": f"p{{i}}", "ground_truth": [f"p{{i}}"]}} for i in itertools.count())
tracemalloc.start()
{code}
print(tracemalloc.get_traced_memory()[1])
"""
    command = [sys.executable, "-c", program, *map(str, words)]
    return int(subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout)


@pytest.mark.parametrize("scoring", ["panel", "full_panel"])
def test_scoring_streams(scoring):
    code = f"metrics.{scoring}(itertools.islice(records, int(sys.argv[1])))"
    growth = peak_bytes(code, 4000) - peak_bytes(code, 1000)
    assert growth < 100_000  # 3000 records kept would take ten times that


@pytest.mark.slow
def test_ids_take_eight_bytes_a_line(tmp_path):
    line = '{"id": "test-%d", "prediction": "p", "ground_truth": ["p"]}\n'
    peaks = []
    for count in (10_000, 100_000):
        path = tmp_path / f"{count}.jsonl"
        with path.open("w") as stream:
            stream.writelines(line % i for i in range(count))
        peaks.append(peak_bytes("metrics.score_file(sys.argv[1])", path))
    assert peaks[1] - peaks[0] < 20 * 90_000


def test_a_tally_is_the_plain_bootstrap_done_in_one_pass():
    rng = np.random.default_rng(1)
    right, lines = rng.integers(0, 3, 700), rng.integers(2, 6, 700)
    tally, other = Tally(1000), Tally(1000)
    for r, n in zip(right.tolist(), lines.tolist(), strict=True):
        tally.add({"mean": r / n, "micro": Share(r, n)})
        other.add({"mean": r / n, "micro": Share(r, n)})
    assert tally.scores()["mean"] == pytest.approx(100 * (right / lines).mean(), abs=0.005)
    assert tally.scores()["micro"] == pytest.approx(100 * right.sum() / lines.sum(), abs=0.005)
    drawn = rng.integers(0, 700, (4000, 700))  # the ordinary one: every question drawn by hand
    plain = {
        "mean": 100 * (right / lines)[drawn].mean(axis=1),
        "micro": 100 * right[drawn].sum(axis=1) / lines[drawn].sum(axis=1),
    }
    for name, (low, high) in tally.intervals().items():
        expected = np.quantile(plain[name], (0.025, 0.975))
        assert [low, high] == pytest.approx(expected.tolist(), abs=0.3), name  # of a width of 4
    assert tally.intervals() == other.intervals()  # seeded


def test_intervals_at_the_edges():
    tally = Tally(1000)
    tally.add({"mean": 0.5, "micro": Share(0, 0)})
    assert tally.scores() == {"mean": 50.0, "micro": 0.0}
    assert tally.intervals() == {"mean": [50.0, 50.0], "micro": [0.0, 0.0]}


def test_paired_draws_questions_and_keeps_pairs_together():
    rng = np.random.default_rng(2)
    differences = np.stack([rng.normal(0.1, 1.0, 400), np.zeros(400)], axis=1)
    low, high, p = paired(differences)
    # The normal approximation of the mean of 400.
    mean, error = differences[:, 0].mean(), differences[:, 0].std() / 20
    assert [low[0], high[0]] == pytest.approx([mean - 1.96 * error, mean + 1.96 * error], abs=0.01)
    assert p[0] == pytest.approx(2 * scipy.stats.norm.sf(mean / error), abs=0.02)
    assert [low[1], high[1], p[1]] == [0, 0, 1]
    assert paired(np.ones((5, 1)), resamples=99).p == pytest.approx(2 / 100)


def test_breakdowns():
    def record(count, **more):
        golds = [f"g{i}" for i in range(count)]
        return {"prediction": golds[0], "ground_truth": [*golds, golds[0]], **more}

    panels = full_panel(
        [
            record(1, hops=2, group="seen"), record(4, hops=10, group="unseen"),
            record(5, hops=None, group="seen"), record(9), record(10), record(30, hops=2),
        ]
    )  # fmt: skip
    sizes = {
        name: {kind: part["n"] for kind, part in panels[name].items()}
        for name in ("by_answers", "by_hops", "by_group")
    }
    assert sizes == {
        "by_answers": {"1": 1, "2-4": 1, "5-9": 2, "10+": 2},
        "by_hops": {"2": 2, "10": 1, "unknown": 1},
        "by_group": {"seen": 2, "unseen": 1},
    }
    assert list(panels["by_answers"]) == ["1", "2-4", "5-9", "10+"]
    assert list(panels["by_hops"]) == ["2", "10", "unknown"]
    assert panels["by_answers"]["2-4"]["strict.recall"] == 25.0
    assert panels["by_answers"]["2-4"]["intervals"]["strict.recall"] == [25.0, 25.0]
    low, high = panels["intervals"]["strict.recall"]
    assert low < panels["strict.recall"] < high
    assert panels["intervals"].keys() == panels.keys() - {"n", "intervals", *sizes}
    assert not {"by_hops", "by_group"} & full_panel([record(1)]).keys()


def test_a_breakdown_into_single_questions_is_left_out(caplog):
    records = [{"prediction": "x", "ground_truth": ["x"], "group": str(i)} for i in range(101)]
    assert "by_group" not in full_panel(records)
    assert "no by_group: more than 100 classes" in caplog.text
    assert len(full_panel(records[:100])["by_group"]) == 100


@pytest.mark.parametrize(
    "name", ["webqsp_gnnrag", "webqsp_gnnrag_ra", "cwq_gnnrag", "webqsp_llama2_free"]
)
def test_published_outputs_to_the_last_digit(sample_data, name):
    folder = sample_data / "fixtures"
    expected = json.loads((folder / "expected.json").read_text())
    scores = score_file(folder / f"{name}.jsonl.gz")
    assert {key: scores[key] for key in expected[name]} == expected[name]
    # These have neither | nor markers nor questions, so the presets that read them agree.
    assert scores["g-retriever.f1"] == scores["rog.f1"]
    for key in ("f1", "em"):
        assert scores[f"subgraphrag.{key}"] == scores[f"one_to_one.{key}"]


def test_a_file_plain_and_compressed(tmp_path):
    records = [GOOD, "", {"id": 2, "prediction": ["Zürich"], "ground_truth": "zürich"}]
    plain = write(tmp_path / "p.jsonl", *records)
    packed = write(tmp_path / "p.jsonl.gz", *records)
    assert list(read_predictions(plain)) == list(read_predictions(str(packed))) == records[::2]
    assert score_file(plain) == score_file(packed)
    assert score_file(plain)["n"] == 2


def test_ids_may_be_absent(tmp_path):
    record = {"prediction": "x", "ground_truth": ["x"]}
    assert score_file(write(tmp_path / "p.jsonl", record, record))["n"] == 2


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ('{"id": "q2", "prediction"', "broken JSON"),
        ("[1]", "expected an object .* got list"),
        ({"id": "q2", "ground_truth": ["x"]}, "missing field prediction .*'q2'"),
        ({"id": "q2", "prediction": "x"}, "missing field ground_truth .*'q2'"),
        ({"id": "q2", "prediction": None, "ground_truth": ["x"]}, "prediction: .*NoneType.*'q2'"),
        ({"id": "q2", "prediction": [None], "ground_truth": ["x"]}, "prediction: .*None in it"),
        ({"id": "q2", "prediction": "x", "ground_truth": [1963]}, "ground_truth: .*1963 in it"),
        ({"id": "q2", "prediction": "x", "ground_truth": []}, "ground_truth is empty .*'q2'"),
        ({"id": "q2", "prediction": "x", "ground_truth": " \n"}, "ground_truth is empty .*'q2'"),
        ({"id": ["q2"], "prediction": "x", "ground_truth": ["x"]}, "id: expected str or int"),
        ({**GOOD, "id": "q2", "hops": -1}, "hops: expected a count or null, got -1 .*'q2'"),
        ({**GOOD, "id": "q2", "hops": "2"}, "hops: expected a count or null, got '2'"),
        ({**GOOD, "id": "q2", "group": 3}, "group: expected str, got 3"),
        ({**GOOD, "id": "q2", "question": ["?"]}, "question: expected str"),
        (GOOD, "duplicate id 'q1', first in line 1"),
    ],
)
def test_errors_name_file_line_and_field(tmp_path, bad, message):
    path = write(tmp_path / "p.jsonl", GOOD, bad)
    with pytest.raises(ValueError, match=rf"p\.jsonl:2: {message}"):
        score_file(path)


def test_ids_that_only_share_a_hash_differ(tmp_path):
    assert hash(-1) == hash(-2)
    records = [{**GOOD, "id": id} for id in (-1, 1, "1", -2)]
    path = write(tmp_path / "p.jsonl", *records)
    assert score_file(path)["n"] == 4
    with pytest.raises(ValueError, match=r"p\.jsonl:5: duplicate id -2, first in line 4"):
        score_file(write(path, *records, records[3]))


def test_errors_of_the_file_itself(tmp_path):
    for name in ("p.jsonl", "p.jsonl.gz"):
        with pytest.raises(ValueError, match="no predictions"):
            score_file(write(tmp_path / name))
    with pytest.raises(ValueError, match="no predictions"):
        score_file(write(tmp_path / "blank.jsonl", "", " "))
    with pytest.raises(ValueError, match=r"expected a \.jsonl"):
        score_file(write(tmp_path / "p.csv", GOOD))
    with pytest.raises(FileNotFoundError):
        score_file(tmp_path / "absent.jsonl")

    latin = tmp_path / "latin.jsonl"
    latin.write_bytes('{"prediction": "Zürich"}\n'.encode("latin-1"))
    with pytest.raises(ValueError, match=r"latin\.jsonl:1: not UTF-8"):
        score_file(latin)
    not_packed = tmp_path / "plain.jsonl.gz"
    not_packed.write_bytes(b"{}\n")
    with pytest.raises(ValueError, match="broken gzip"):
        score_file(not_packed)
    cut = write(tmp_path / "cut.jsonl.gz", GOOD)
    cut.write_bytes(cut.read_bytes()[:-10])
    with pytest.raises(ValueError, match="broken gzip"):
        score_file(cut)


def test_panel_checks_records_that_come_without_a_file():
    with pytest.raises(ValueError, match="no predictions"):
        panel([])
    with pytest.raises(ValueError, match=r"record 2: ground_truth is empty .*'q2'"):
        panel([GOOD, {"id": "q2", "prediction": "x", "ground_truth": []}])
