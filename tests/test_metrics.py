import gzip
import itertools
import json
import tracemalloc

import pytest

from bisrqa.metrics import (
    PRESETS,
    gcr,
    gnn_rag,
    one_to_one,
    panel,
    read_predictions,
    rog,
    score_file,
    split_answers,
    split_golds,
    strict,
)

GOOD = {"id": "q1", "prediction": "Paris\nRome", "ground_truth": ["Paris"]}


def close(**scores):
    return pytest.approx(scores)


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


def test_strict_by_hand():
    lines = ["The Paris!", "paris", "---", "Rome"]  # two answers after normalising
    expected = close(precision=0.5, recall=0.5, f1=0.5, hit=1, em=0)
    assert strict(lines, ["Paris", "PARIS", "Oslo"]) == expected
    assert strict(["Rome", "Paris"], ["Paris", "Rome"]) == close(
        precision=1, recall=1, f1=1, hit=1, em=1
    )
    nothing = close(precision=0, recall=0, f1=0, hit=0, em=0)
    assert strict(["The answer is Paris"], ["Paris"]) == nothing


def test_unicode_and_bare_ids():
    for preset, score in PRESETS.items():
        for line, gold in [
            ("Beyonce\u0301", "beyonc\u00e9"),
            ("北京", "北京"),
            ("m.0f2y0", "m.0f2y0"),
        ]:
            assert set(score([line], [gold]).values()) == {1.0}, preset
        assert set(score(["Fulton"], ["m.0f2y0"]).values()) == {0.0}, preset


@pytest.mark.parametrize(
    "prediction", ["", " ", "\n\n", "\t\r\n", [], [""], ["", " "], "?!", "the"]
)
@pytest.mark.parametrize("golds", [["Paris"], ["Paris", "Rome"], ["?!"], ["", "The"]])
def test_an_empty_prediction_scores_zero(prediction, golds):
    scores = panel([{"prediction": prediction, "ground_truth": golds}])
    assert scores.pop("n") == 1
    assert set(scores.values()) == {0.0}


def test_a_gold_that_normalises_to_nothing_counts_but_never_matches():
    scores = panel([{"prediction": "Paris\n?!", "ground_truth": ["?!"]}])
    assert scores.pop("n") == 1
    assert set(scores.values()) == {0.0}
    scores = panel([{"prediction": "Paris", "ground_truth": ["Paris", "?!"]}])
    recalls = [scores[f"{preset}.recall"] for preset in ("rog", "gcr", "strict")]
    assert recalls == [50.0, 50.0, 50.0]
    assert scores["strict.em"] == scores["one_to_one.em"] == 0.0


def test_panel_averages_percentages():
    right = {"prediction": ["Paris"], "ground_truth": "Paris\n"}
    wrong = {"prediction": "Oslo", "ground_truth": ["Paris"]}
    scores = panel(iter([right, wrong, wrong]))
    assert scores.pop("n") == 3
    assert set(scores.values()) == {33.33}
    assert isinstance(panel([right])["n"], int)


def test_panel_streams():
    records = ({"prediction": f"p{i}", "ground_truth": [f"p{i}"]} for i in itertools.count())
    tracemalloc.start()
    panel(itertools.islice(records, 50))
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    panel(itertools.islice(records, 1000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak - before < 100_000  # bytes; 1000 records kept would take four times that


@pytest.mark.parametrize(
    "name", ["webqsp_gnnrag", "webqsp_gnnrag_ra", "cwq_gnnrag", "webqsp_llama2_free"]
)
def test_published_outputs_to_the_last_digit(sample_data, name):
    folder = sample_data / "fixtures"
    expected = json.loads((folder / "expected.json").read_text())
    assert score_file(folder / f"{name}.jsonl.gz") == expected[name]


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
        (GOOD, "duplicate id 'q1'"),
    ],
)
def test_errors_name_file_line_and_field(tmp_path, bad, message):
    path = write(tmp_path / "p.jsonl", GOOD, bad)
    with pytest.raises(ValueError, match=rf"p\.jsonl:2: {message}"):
        score_file(path)


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
