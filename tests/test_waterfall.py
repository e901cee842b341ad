import itertools
import json
import sys

import pytest
import tiny

from bisrqa import cli, evaluation, waterfall
from bisrqa.answering import Reply

STAGES = ("all", *waterfall.STAGES)


def record(prediction, *counts, **more):
    """A record whose gold is "Rome"; ``counts`` in the order of STAGES."""
    golds = dict(zip(STAGES, counts, strict=False))
    return {"prediction": prediction, "ground_truth": ["Rome"], "golds": golds, **more}


def write(path, records):
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(r) + "\n" for r in records))
    return str(path)


@pytest.mark.parametrize(
    ("prediction", "counts", "expected"),
    [
        ("Rome", (1, 1, 1, 1, 1), "answered"),
        ("the ROME!", (2, 2, 1, 1, 0), "answered"),  # it was written after all
        ("Rome", (1, 0, 0, 0, 0), "answered_from_memory"),
        ("Rome", (1, 1, 1, 0, 0), "answered_from_memory"),
        ("It is Rome", (1, 1, 1, 1, 1), "answered_wrong"),  # a strict hit is what counts
        ("", (2, 2, 2, 1, 1), "answered_wrong"),
        ("Oslo", (1, 1, 1, 1, 0), "over_the_cap"),
        ("Oslo", (1, 1, 1, 0, 0), "cut_from_prompt"),
        ("Oslo", (1, 1, 0, 0, 0), "not_retrieved"),
        ("Oslo", (1, 0, 0, 0, 0), "not_in_graph"),
        ("Oslo", (1, 1, 1, 1), "answered_wrong"),  # from before the cap was looked at
    ],
)
def test_a_question_is_lost_at_the_first_stage_without_a_gold(prediction, counts, expected):
    assert waterfall.class_of(record(prediction, *counts)) == expected


def test_classes_sum_to_all_questions():
    ways = itertools.product(("Rome", "Oslo"), *[range(3)] * 4)
    records = [record(text, 2, *counts) for text, *counts in ways]
    counts = waterfall.tally(map(waterfall.class_of, records))
    assert list(counts) == list(waterfall.CLASSES)
    assert sum(counts.values()) == len(records) == 162
    assert min(counts.values()) > 0


def test_summary_by_hand():
    found = waterfall.summary([record("Rome", 4, 4, 2, 2, 1), record("Oslo", 1, 1, 0, 0, 0)])
    lost = found.pop("waterfall")
    assert {name: n for name, n in lost.items() if n} == {"answered": 1, "not_retrieved": 1}
    assert found == {
        "golds.in_graph": 100.0, "golds.retrieved": 50.0,
        "golds.in_prompt": 50.0, "golds.within_cap": 50.0,
        "ceiling.in_graph": 100.0, "ceiling.retrieved": 25.0,
        "ceiling.in_prompt": 25.0, "ceiling.within_cap": 12.5,
    }  # fmt: skip


def test_as_many_golds_as_the_cap_has_room_for():
    assert waterfall.fitting([3, 3, 3], newline=1, cap=11) == 3
    assert waterfall.fitting([3, 3, 3], newline=1, cap=10) == 2
    assert waterfall.fitting([9, 2, 2], newline=1, cap=5) == 2  # one too long is passed over
    assert waterfall.fitting([9, 6], newline=1, cap=5) == 0
    assert waterfall.fitting([5], newline=1, cap=5) == 1
    assert waterfall.fitting([], newline=1, cap=5) == 0


def test_a_record_says_which_golds_fit_into_the_reply():
    # One token a byte and 16 of them. "Oslo" is no gold that the prompt holds.
    long = "a town with a very long name"
    triples = [("Ada", "likes", gold) for gold in ("Rome", long, "Lima", "Reykjavik")]
    example = tiny.example("?", ["Rome", long, "Lima", "Reykjavik", "Oslo"], triples, ["Ada"])
    settings = tiny.config(prompt={"soft_prompt": False, "max_prompt_tokens": 200})
    model = tiny.model(settings)
    made = evaluation._record(
        model, model.prepare([example]), Reply(0, "Rome", 5, 0.1, 0.2, 0.3), {"link": 0.5}
    )
    # Rome, a newline and Lima are 9 bytes; Reykjavik would be 10 more.
    assert made["golds"] == {
        "all": 5, "in_graph": 4, "retrieved": 4, "in_prompt": 4, "within_cap": 2,
    }  # fmt: skip
    assert "hops" not in made
    assert (made["seconds"], made["new_tokens"]) == (0.6, 5)
    assert made["latency"] == {"link": 0.5, "encode": 0.1, "prefill": 0.2, "decode": 0.3}
    assert made["prompt_tokens"] == model.inputs(model.prepare([example]))[1].input_ids.numel()
    assert waterfall.class_of(made) == "answered"


def test_scores_of_an_evaluation_have_a_waterfall_for_all_groups_and_hops(tmp_path):
    records = [
        record("Rome", 1, 1, 1, 1, 1, seconds=1.0, group="seen_path", hops=1),
        record("Oslo", 1, 1, 1, 0, 0, seconds=1.0, group="other", hops=2),
        record("Oslo", 1, 0, 0, 0, 0, seconds=1.0, group="other"),
    ]
    result = evaluation._score(records)
    parts = {"all": result, **result["groups"], **result["by_hops"]}
    found = {k: {c: n for c, n in p["waterfall"].items() if n} for k, p in parts.items()}
    assert found == {
        "all": {"answered": 1, "cut_from_prompt": 1, "not_in_graph": 1},
        "seen_path": {"answered": 1},
        "other": {"cut_from_prompt": 1, "not_in_graph": 1},
        "1": {"answered": 1},
        "2": {"cut_from_prompt": 1},
    }
    assert result["groups"]["other"]["golds.in_graph"] == 50.0
    assert "by_group" not in result
    evaluation._draw(result, tmp_path)
    svg = (tmp_path / "waterfall.svg").read_text("utf8")
    for text in ("seen path", "1 hop<", "2 hops<", "n = 3", "gold cut from the prompt"):
        assert text in svg
    evaluation._draw({"strict.f1": 1.0}, tmp_path / "older")  # nothing to draw
    assert not (tmp_path / "older").exists()


COUNTS = dict(zip(waterfall.CLASSES, (60, 0, 20, 1, 9, 5, 5), strict=True))


def test_pictures_are_whole_and_the_same_each_time(tmp_path):
    bars = {"all": COUNTS, "a $b$ 北京": COUNTS, "none": dict.fromkeys(COUNTS, 0)}
    waterfall.draw(bars, tmp_path)
    assert (tmp_path / "waterfall.png").read_bytes().startswith(b"\x89PNG")
    svg = (tmp_path / "waterfall.svg").read_text("utf8")
    assert ">a $b$ 北京<" in svg  # as text, neither a formula nor boxes
    assert ">60<" in svg
    assert ">1<" not in svg  # no room in a piece of 1 %
    assert "none" not in {line.split(">")[1] for line in svg.split("<text")[1:]}
    waterfall.draw(bars, tmp_path / "again")
    for name in waterfall.FILES:
        assert (tmp_path / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    assert {p.name for p in tmp_path.iterdir()} == {*waterfall.FILES, "again"}
    with pytest.raises(ValueError, match=r"x\.jpg: pictures are \.png or \.svg"):
        waterfall.save(waterfall.figure(bars), tmp_path / "x.jpg")


def test_without_matplotlib_one_line_says_so(tmp_path, monkeypatch, caplog, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with caplog.at_level("INFO"):
        waterfall.draw({"all": COUNTS}, tmp_path)
    assert caplog.messages == ["no picture without matplotlib: pip install 'bisrqa[plot]'"]
    assert not list(tmp_path.iterdir())
    rows = [record("Rome", 1, 1, 1, 1, 1, id="q")]
    files = [write(tmp_path / name / "p.jsonl", rows) for name in "ab"]
    assert cli.main(["compare", *files, "--plot", str(tmp_path / "x.png")]) == 1
    assert "bisrqa[plot]" in capsys.readouterr().err
    assert cli.main(["compare", *files]) == 0


def test_compare_draws_systems_side_by_side(tmp_path, capsys):
    right, wrong = record("Rome", 1, 1, 1, 1, 1, id="q"), record("Oslo", 1, 0, 0, 0, 0, id="q")
    files = [write(tmp_path / name / "p.jsonl", [r]) for name, r in (("a", right), ("b", wrong))]
    assert cli.main(["compare", *files, "--plot", str(tmp_path / "x.svg")]) == 0
    svg = (tmp_path / "x.svg").read_text("utf8")
    for text in (">a<", ">b<", "gold not in the graph"):
        assert text in svg
    del right["golds"]
    write(tmp_path / "a" / "p.jsonl", [right])
    assert cli.main(["compare", *files, "--plot", str(tmp_path / "y.svg")]) == 1
    assert "id 'q' has no golds, which `bisrqa evaluate` writes" in capsys.readouterr().err
    assert not (tmp_path / "y.svg").exists()
