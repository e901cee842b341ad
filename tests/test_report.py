from bisrqa import report

PANEL = {"n": 4, "strict.hit": 75.0, "strict.f1": 66.67, "rog.hit": 100.0, "rog.f1": 80.0}
PANEL |= {"golds.in_prompt": 50.0}


def test_a_row_for_every_evaluation_and_group():
    plain = {**PANEL, "groups": {}, "seconds_per_question": 0.5}
    head, rule, row = report.table({"trained": plain}).splitlines()
    assert set(rule) == set("|-: ")
    assert [c.strip() for c in head.split("|")][1:4] == ["", "questions", "n"]
    assert [c.strip() for c in row.split("|")][1:-1] == [
        "trained", "all", "4", "75.0", "66.7", "100.0", "80.0", "50.0", "0.50",
    ]  # fmt: skip
    assert len(head) == len(rule) == len(row)
    grouped = {**plain, "groups": {"unseen_path": {**PANEL, "n": 1}, "b": {**PANEL, "n": 3}}}
    lines = report.table({"a": grouped, "trained": grouped}).splitlines()[2:]
    found = [[c.strip() for c in line.split("|")][1:4] for line in lines]
    assert found == [
        ["a", "unseen path", "1"], ["trained", "unseen path", "1"],
        ["a", "b", "3"], ["trained", "b", "3"],
    ]  # fmt: skip


def test_samples_show_the_best_triple_that_names_the_answer():
    def made(number, answers, triples):
        evidence = [{"triple": t, "in_prompt": kept, "score": 1.0} for t, kept in triples]
        return {
            "question": f"q{number}", "answers": answers, "ground_truth": ["g"],
            "evidence": evidence,
        }  # fmt: skip

    rows = [
        made(0, ["b"], [(["x", "r", "y"], True), (["a", "r", "b"], True), (["b", "s", "c"], True)]),
        made(1, [], []),
        made(2, ["b"], [(["a", "r", "b"], False)]),
    ]
    first, second, third = report.samples(rows).split("\nq")
    assert first == "q0\n  answer  b\n  gold    g\n  from    a | r | b"
    assert "answer  (none)" in second
    assert third.endswith("no triple that was read names it")
    assert report.samples([rows[0]] * 200).count("answer") == 5
