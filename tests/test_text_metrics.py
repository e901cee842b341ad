"""HotpotQA's scores, against the official script's steps written out plainly."""

import json
import random
import re
import string
from collections import Counter

import pytest

from bisrqa import cli, metrics
from bisrqa.text_metrics import answer, joint, over_texts, supporting


def official_normalise(text: str) -> str:
    text = "".join(c for c in text.lower() if c not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def official_f1(prediction: str, gold: str) -> tuple[float, float, float]:
    said, wanted = official_normalise(prediction), official_normalise(gold)
    for one in (said, wanted):
        if one in ("yes", "no", "noanswer") and said != wanted:
            return 0, 0, 0
    common = sum((Counter(said.split()) & Counter(wanted.split())).values())
    if common == 0:
        return 0, 0, 0
    precision, recall = common / len(said.split()), common / len(wanted.split())
    return 2 * precision * recall / (precision + recall), precision, recall


def official(rows: list[dict]) -> dict[str, float]:
    """Sums over all gold questions, as the published evaluation adds them up."""
    total: Counter = Counter()
    for row in rows:
        f1, precision, recall = official_f1(row["prediction"], row["ground_truth"][0])
        em = official_normalise(row["prediction"]) == official_normalise(row["ground_truth"][0])
        found = {tuple(f) for f in row["supporting_facts"]}
        gold = {tuple(f) for f in row["gold_supporting_facts"]}
        right, wrong, missed = len(found & gold), len(found - gold), len(gold - found)
        sp_p = right / (right + wrong) if right + wrong else 0.0
        sp_r = right / (right + missed) if right + missed else 0.0
        sp_f1 = 2 * sp_p * sp_r / (sp_p + sp_r) if sp_p + sp_r else 0.0
        sp_em = float(wrong + missed == 0)
        joint_p, joint_r = precision * sp_p, recall * sp_r
        joint_f1 = 2 * joint_p * joint_r / (joint_p + joint_r) if joint_p + joint_r else 0.0
        total.update(
            em=em, f1=f1, precision=precision, recall=recall, sp_em=sp_em, sp_f1=sp_f1,
            sp_precision=sp_p, sp_recall=sp_r, joint_em=em * sp_em, joint_f1=joint_f1,
            joint_precision=joint_p, joint_recall=joint_r,
        )  # fmt: skip
    return {name: value / len(rows) for name, value in total.items()}


def rows(number: int) -> list[dict]:
    rng = random.Random(0)
    words = ["the", "Rome", "a", "city", "yes", "no", "of", "U.S.", "noanswer", "Bo-Bo", "1990"]
    facts = [["Ada", 0], ["Ada", 1], ["Bo", 0], ["Cy", 3]]

    def some() -> str:
        return " ".join(rng.choices(words, k=rng.randrange(1, 4)))

    return [
        {
            "id": str(i),
            "prediction": rng.choice([some(), "yes", "no", ""]),
            "ground_truth": [rng.choice([some(), "yes", "no"])],
            "supporting_facts": rng.sample(facts, rng.randrange(4)),
            "gold_supporting_facts": rng.sample(facts, rng.randrange(1, 4)),
        }
        for i in range(number)
    ]


def test_the_means_are_those_of_the_official_steps():
    made = rows(400)
    expected = official(made)
    found = [over_texts(row) for row in made]
    for name, value in expected.items():
        name = f"hotpotqa.{name}"
        assert sum(f[name] for f in found) / len(found) == pytest.approx(value, abs=1e-12), name


def test_score_prints_them_for_files_that_have_supporting_facts(tmp_path, capsys):
    made = rows(60)
    file = tmp_path / "p.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in made))
    assert cli.main(["score", str(file)]) == 0
    found = json.loads(capsys.readouterr().out)
    for name, value in official(made).items():
        assert found[f"hotpotqa.{name}"] == pytest.approx(100 * value, abs=0.006)
    plain = metrics.panel([{"prediction": "x", "ground_truth": ["x"]}])
    assert not [key for key in plain if key.startswith("hotpotqa")]


def test_some_records_with_facts_and_some_without_are_refused(tmp_path, capsys):
    made = rows(2)
    del made[1]["gold_supporting_facts"]
    file = tmp_path / "p.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in made))
    assert cli.main(["score", str(file)]) == 1
    assert "record 2" in capsys.readouterr().err.splitlines()[-1]


def test_2wiki_triples_are_sets_when_normalised():
    row = {"prediction": "Cork", "ground_truth": ["Cork"], "supporting_facts": [["A", 0]],
           "gold_supporting_facts": [["A", 0], ["B", 1]],
           "evidences": [["the Man", "Father", "Sir Man."], ["x", "y", "z"]],
           "gold_evidences": [["Man", "father", "Sir Man"]]}  # fmt: skip
    found = over_texts(row)
    wanted = {"em": 0, "precision": 0.5, "recall": 1, "f1": 2 / 3}
    for name, value in wanted.items():
        assert found[f"2wiki.evi_{name}"] == pytest.approx(value)
    # answer (1, 1), facts (1, 1/2), triples (1/2, 1)
    assert found["2wiki.joint_precision"] == pytest.approx(0.5)
    assert found["2wiki.joint_recall"] == pytest.approx(0.5)
    assert found["2wiki.joint_em"] == 0
    perfect = row | {"evidences": row["gold_evidences"], "supporting_facts": [["A", 0], ["B", 1]]}
    assert over_texts(perfect)["2wiki.joint_em"] == 1
    plain = {key: value for key, value in row.items() if "evidences" not in key}
    assert not [name for name in over_texts(plain) if name.startswith("2wiki")]
    with pytest.raises(ValueError, match="gold_evidences: expected a list of"):
        over_texts(row | {"gold_evidences": [["a", "b"]]})


def test_yes_and_no_are_right_or_wrong_as_a_whole():
    assert answer("yes, it is", ["yes"])["f1"] == 0
    assert answer("Yes.", ["yes"]) == {"f1": 1, "precision": 1, "recall": 1, "em": 1}
    assert answer("no", ["yes"])["em"] == 0


def test_aliases_take_the_best():
    found = answer("New York", ["NYC", "New York City"])
    assert found["recall"] == pytest.approx(2 / 3)
    assert answer("nyc", ["New York City", "NYC"])["em"] == 1


def test_facts_are_sets_and_joint_multiplies():
    facts = supporting([["A", 1], ["A", 1], ["B", 0]], [["A", 1]])
    assert facts == {"em": 0, "f1": pytest.approx(2 / 3), "precision": 0.5, "recall": 1}
    assert supporting([], [["A", 1]])["f1"] == 0
    both = joint(answer("Rome", ["Rome"]), facts)
    assert both == {"em": 0, "f1": pytest.approx(2 / 3), "precision": 0.5, "recall": 1}


def test_the_first_line_of_a_reply_is_the_answer():
    row = {"prediction": ["", "Rome", "Oslo"], "ground_truth": ["Rome"]}
    assert over_texts(row) == {}
    assert over_texts(row | {"gold_supporting_facts": [["A", 0]]})["hotpotqa.em"] == 1


@pytest.mark.parametrize("facts", ["A", [["A"]], [["A", "0"]], {"A": 0}])
def test_facts_of_another_shape_are_named(facts):
    row = {"id": 7, "prediction": "x", "ground_truth": ["x"], "gold_supporting_facts": facts}
    with pytest.raises(ValueError, match=r"gold_supporting_facts: expected a list of .*\(id 7\)"):
        over_texts(row)
