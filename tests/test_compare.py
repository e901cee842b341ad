import gzip
import json

import numpy as np
import pytest
import scipy.stats

from bisrqa import cli, report
from bisrqa.compare import METRICS, compare, holm


def record(id, prediction, golds=("Rome",), **more):
    return {"id": id, "prediction": prediction, "ground_truth": list(golds), **more}


@pytest.fixture
def write(tmp_path):
    def to_file(name, records):
        path = tmp_path / name
        data = "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records).encode()
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return str(path)

    return to_file


def made(rights):
    """A record for each letter: R right, w wrong."""
    return [record(f"q{i}", "Rome" if r == "R" else "Oslo") for i, r in enumerate(rights)]


def test_wins_losses_and_mcnemar_by_hand(write):
    one, other = write("a.jsonl", made("RRwwwwwwww")), write("b.jsonl", made("wRRRRRRwww"))
    result = compare([one, other])
    assert (result["n"], result["against"], result["left_out"]) == (10, one, {one: 0, other: 0})
    assert result["scores"][one]["strict.hit"] == 20.0
    assert result["scores"][other]["strict.hit"] == 60.0
    test = result["comparisons"][other]["strict.hit"]
    assert test["difference"] == 40.0
    assert (test["won"], test["lost"], test["tied"]) == (5, 1, 4)
    assert test["won_ids"] == ["q2", "q3", "q4", "q5", "q6"]
    assert test["lost_ids"] == ["q0"]
    # Of 6 questions that differ, 5 or 6 or 0 or 1 won: 2 * (6 + 1) / 2^6.
    assert test["mcnemar_p"] == pytest.approx(14 / 64)
    assert list(result["comparisons"][other]) == list(METRICS)
    assert "p_holm" not in test
    assert "listed" not in result
    json.dumps(result)


def test_the_interval_is_the_paired_bootstraps(write):
    rng = np.random.default_rng(3)
    golds = ["a1", "b1", "c1", "d1"]
    files, recalls = [], []
    for name, shift in (("a.jsonl", 0), ("b.jsonl", 1)):
        counts = np.clip(rng.integers(0, 4, 200) + shift * rng.integers(0, 2, 200), 0, 4).tolist()
        rows = [record(i, golds[:count], golds) for i, count in enumerate(counts)]
        files.append(write(name, rows))
        recalls.append(np.array(counts) / 4)
    test = compare(files, ["strict.recall"])["comparisons"][files[1]]["strict.recall"]
    difference = recalls[1] - recalls[0]
    plain = [difference[rng.integers(0, 200, 200)].mean() for _ in range(4000)]  # a plain loop
    assert test["difference"] == pytest.approx(100 * difference.mean(), abs=0.005)
    assert test["interval"] == pytest.approx(
        (100 * np.quantile(plain, (0.025, 0.975))).tolist(), abs=0.6
    )  # of a width of 11
    z = difference.mean() / (difference.std() / np.sqrt(200))
    assert test["p"] == pytest.approx(2 * scipy.stats.norm.sf(z), abs=0.02)
    assert "mcnemar_p" not in test  # recall is not 0 or 1 here
    again = compare(files, ["strict.recall"])["comparisons"][files[1]]["strict.recall"]
    assert again == test  # seeded


def test_equal_files_differ_by_nothing(write):
    files = [write("a.jsonl", made("Rw")), write("b.jsonl.gz", made("Rw"))]
    for test in compare(files)["comparisons"][files[1]].values():
        assert (test["difference"], test["interval"], test["p"]) == (0.0, [0.0, 0.0], 1.0)
        assert (test["mcnemar_p"], test["tied"]) == (1.0, 2)


def test_less_of_what_is_wrong_is_won(write):
    files = [write("a.jsonl", made("ww")), write("b.jsonl", made("Rw"))]
    found = compare(files, ["subgraphrag.totally_wrong"])["comparisons"][files[1]]
    test = found["subgraphrag.totally_wrong"]
    assert (test["difference"], test["won_ids"], test["lost"]) == (-50.0, ["q0"], 0)


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_several_files_are_each_held_against_the_first(write):
    files = [
        write(f"{i}.jsonl", made(r)) for i, r in enumerate(("w" * 12, "R" * 12, "wR" * 3 + "w" * 6))
    ]
    found = compare(files, ["strict.hit"])["comparisons"]
    assert list(found) == files[1:]
    strong, weak = (found[file]["strict.hit"] for file in files[1:])
    assert strong["mcnemar_p"] == pytest.approx(2 / 2**12)
    assert weak["mcnemar_p"] == pytest.approx(2 / 2**3)
    assert strong["mcnemar_p_holm"] == pytest.approx(4 / 2**12)
    assert weak["mcnemar_p_holm"] == pytest.approx(2 / 2**3)
    assert strong["p_holm"] == pytest.approx(2 * strong["p"])


def test_order_of_lines_does_not_matter(write):
    rows = made("RRww")
    one = write("a.jsonl", rows)
    results = [
        compare([one, write("b.jsonl", order)])["comparisons"]
        for order in (made("wRRR"), made("wRRR")[::-1])
    ]
    assert results[0] == results[1]


def test_files_must_have_the_same_questions(write, capsys):
    one, other = write("a.jsonl", made("RRR")), write("b.jsonl", [*made("RR"), record(7, "Rome")])
    with pytest.raises(ValueError, match=r"1 of .*a\.jsonl are not in .*b\.jsonl") as caught:
        compare([one, other])
    assert "(the first: 'q2')" in str(caught.value)
    assert f"1 of {other} are not in {one} (the first: 7)" in str(caught.value)
    result = compare([one, other], intersect=True)
    assert (result["n"], result["left_out"]) == (2, {one: 1, other: 1})
    assert result["scores"][one]["strict.hit"] == 100.0
    assert cli.main(["compare", one, other]) == 1
    error = capsys.readouterr().err.splitlines()
    assert len(error) == 1
    assert "--intersect compares those in all files" in error[0]
    assert cli.main(["compare", one, other, "--intersect", "--table"]) == 0
    assert "left out, not in all files: 1 of a.jsonl, 1 of b.jsonl" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"no id of .* is in all other files"):
        compare([one, write("c.jsonl", [record("z", "Rome")])], intersect=True)


def test_the_same_question_has_the_same_golds(write):
    one = write("a.jsonl", [record("q", "Rome", ["Rome", "Oslo", "Rome"])])
    assert compare([one, write("b.jsonl", [record("q", "x", ["Oslo", "Rome"])])])["n"] == 1
    with pytest.raises(ValueError, match=r"id 'q' has other golds: \['Rome', 'Oslo', 'Rome'\] in"):
        compare([one, write("b.jsonl", [record("q", "x", ["Rome"])])])


def test_golds_with_separators_or_of_nothing_and_other_scripts(write):
    golds = [["a|b"], ["New\nYork"], ["?!"], ["北京"], ["القاهرة"], ["Beyonc\u00e9"]]
    texts = ["a|b", "New York", "?!", "北京", "القاهرة", "Beyonce\u0301"]
    right = [record(i, t, g) for i, (t, g) in enumerate(zip(texts, golds, strict=True))]
    wrong = [record(i, "x", g) for i, g in enumerate(golds)]
    files = [write("a.jsonl", wrong), write("b.jsonl", right)]
    won = compare(files)["comparisons"][files[1]]["strict.hit"]["won_ids"]
    assert won == [0, 1, 3, 4, 5]  # a gold that normalises to nothing matches nothing


@pytest.mark.parametrize(
    ("bad", "words", "message"),
    [
        (None, [], "compare needs two files or more"),
        ([], [], "no predictions"),
        ([{"prediction": "x", "ground_truth": ["x"]}], [], "record 1 has no id"),
        ([*made("R"), *made("R")], [], "b.jsonl:2: duplicate id 'q0', first in line 1"),
        (made("R"), ["--metric", "strict.f2"], "no score 'strict.f2'; there are rog.recall, rog."),
        (made("R"), ["--metric", "subgraphrag.micro_f1"], "no score 'subgraphrag.micro_f1'"),
        (made("R"), ["--list", "-1"], "--list must not be negative"),
        (made("R"), ["--out", "p.jsonl"], "--out p.jsonl: expected a name that ends in .json"),
        (made("R"), ["a.jsonl"], "a.jsonl is given twice"),
        (made("R"), ["nowhere.jsonl"], "nowhere.jsonl"),
        (made("R"), ["--plot", "x.jpg"], "has no golds"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_to_do(
    bad, words, message, write, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    write("a.jsonl", made("R"))
    files = ["a.jsonl"]
    if bad is not None:
        write("b.jsonl", bad)
        files.append("b.jsonl")
    assert cli.main(["compare", *files, *words]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    error = captured.err.splitlines()
    assert len(error) == 1
    assert message in error[0]
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(files)


def test_a_broken_gzip_is_named(write, tmp_path, capsys):
    whole, cut = write("a.jsonl.gz", made("R")), tmp_path / "b.jsonl.gz"
    cut.write_bytes(gzip.compress(b"x" * 1000)[:-8])
    for command in (["score", str(cut)], ["compare", whole, str(cut)]):
        assert cli.main(command) == 1
        assert "b.jsonl.gz:1: broken gzip" in capsys.readouterr().err


def test_json_and_tables_on_the_command_line(write, tmp_path, capsys):
    question = {"question": "where | is it"}
    one = write("a.jsonl", [{**r, **question} for r in made("RRw")])
    other = write("b.jsonl", made("wRR"))
    out = tmp_path / "deep" / "result.json"
    command = ["compare", one, other, "--metric", "strict.hit", "rog.f1", "--list", "1"]
    assert cli.main([*command, "--out", str(out)]) == 0
    result = json.loads(capsys.readouterr().out)
    assert json.loads(out.read_text("utf8")) == result
    assert list(result["comparisons"][other]) == ["strict.hit", "rog.f1"]
    assert result["listed"][other]["won"] == [
        {
            "id": "q2", "question": "where | is it", "ground_truth": ["Rome"],
            "predictions": {one: "Oslo", other: "Rome"},
        }
    ]  # fmt: skip
    assert cli.main([*command, "--table"]) == 0
    shown = capsys.readouterr().out
    assert "b.jsonl against a.jsonl" in shown
    assert "| strict.hit |      +0.00 | -100.00 to +100.00 | 1.0000 |    1.0000 |" in shown
    listed = "- q2: where | is it\n  - gold: Rome\n  - a.jsonl: Oslo\n  - b.jsonl: Rome\n"
    assert listed in shown
    assert "lost by b.jsonl (strict.hit)\n\n- q0" in shown


def test_score_as_json_and_tables(write, tmp_path, capsys):
    rows = [{**r, "hops": i % 2 + 1, "group": "a|b"} for i, r in enumerate(made("RRw"))]
    file, out = write("a.jsonl", rows), tmp_path / "scores.json"
    assert cli.main(["score", file, "--out", str(out)]) == 0
    panel = json.loads(capsys.readouterr().out)
    assert json.loads(out.read_text("utf8")) == panel
    assert (panel["n"], panel["strict.hit"]) == (3, 66.67)
    assert panel["by_hops"]["2"]["n"] == 1
    assert cli.main(["score", file, "--table"]) == 0
    shown = capsys.readouterr().out
    assert "| strict.hit" in shown
    assert "| hops |  n |" in shown
    assert r"| a\|b  |  3 |" in shown  # a cell stays one cell
    assert cli.main(["score", file, "--out", file]) == 1
    assert "expected a name that ends in .json" in capsys.readouterr().err


def test_published_outputs_compared(sample_data):
    files = [str(sample_data / f"fixtures/webqsp_gnnrag{end}.jsonl.gz") for end in ("", "_ra")]
    result = compare(files, ["strict.hit"])
    test = result["comparisons"][files[1]]["strict.hit"]
    assert result["n"] == 1228
    assert (test["won"], test["lost"], test["difference"]) == (77, 22, 4.48)
    assert test["interval"][0] > 0
    assert test["mcnemar_p"] == pytest.approx(2 * scipy.stats.binom.cdf(22, 99, 0.5))


def test_short_names():
    assert report.short_names(["runs/a/p.jsonl", "runs/b/c/p.jsonl"]) == {
        "runs/a/p.jsonl": "a", "runs/b/c/p.jsonl": "b/c",
    }  # fmt: skip
    assert list(report.short_names(["a.jsonl", "x/a.jsonl"]).values()) == ["a.jsonl", "x/a.jsonl"]
    assert list(report.short_names(["x/a.jsonl", "x/b.jsonl"]).values()) == ["a.jsonl", "b.jsonl"]
