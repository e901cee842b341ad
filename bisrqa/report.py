"""What evaluations came to, for a terminal: a table (it is Markdown too), and some answers."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

MAX_TEXT = 300
"""Characters shown of a reply in a list."""
SCORES = ("strict.hit", "strict.f1", "rog.hit", "rog.f1", "golds.in_prompt")


def table(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """One line for each evaluation, and for each group of questions where there are groups.

    Args:
        rows: By name, what ``metrics.json`` of an evaluation holds.
    """
    lines = [["", "questions", "n", *SCORES, "s/question"]]
    groups = list(dict.fromkeys(group for row in rows.values() for group in row["groups"]))
    for group in groups or [None]:
        for name, row in rows.items():
            panel = row["groups"][group] if group else row
            scores = [f"{panel[score]:.1f}" for score in SCORES]
            seconds = f"{row['seconds_per_question']:.2f}"
            about = group.replace("_", " ") if group else "all"
            lines.append([name, about, str(panel["n"]), *scores, seconds])
    return grid(lines)


def grid(lines: Sequence[Sequence[str]], texts: int = 2) -> str:
    """Cells as a Markdown table, the first line its head.

    Args:
        lines: Rows of equal length.
        texts: How many columns stand on the left; the others are numbers.
    """
    lines = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    widths = [max(2, *map(len, column)) for column in zip(*lines, strict=True)]

    def show(cells: Sequence[str]) -> str:
        padded = [c.ljust(w) if i < texts else c.rjust(w) for i, (c, w) in enumerate(
            zip(cells, widths, strict=True)
        )]  # fmt: skip
        return f"| {' | '.join(padded)} |"

    rule = [("-" * w if i < texts else "-" * (w - 1) + ":") for i, w in enumerate(widths)]
    return "\n".join([show(lines[0]), show(rule), *map(show, lines[1:])])


def score_tables(panel: Mapping[str, Any]) -> str:
    """All scores with their intervals, then some of them for each class of questions.

    Args:
        panel: What ``metrics.full_panel`` gives.
    """
    n, intervals = str(panel["n"]), panel["intervals"]
    lines = [["score", "%", "95 % interval", "n"]]
    lines += [[name, f"{panel[name]:.2f}", _range(ends), n] for name, ends in intervals.items()]
    tables = [grid(lines, texts=1)]
    shown = [score for score in SCORES if score in intervals]
    for key, title in (("by_answers", "answers"), ("by_hops", "hops"), ("by_group", "group")):
        if key in panel:
            lines = [[title, "n", *shown]]
            lines += [
                [kind, str(part["n"]), *(_with_range(part, score) for score in shown)]
                for kind, part in panel[key].items()
            ]
            tables.append(grid(lines, texts=1))
    return "\n\n".join(tables)


def comparison_tables(result: Mapping[str, Any]) -> str:
    """Scores side by side, the tests, and the questions that are listed.

    Args:
        result: What ``compare.compare`` gives.
    """
    called = short_names(list(result["scores"]))
    first, names = result["against"], list(result["scores"][result["against"]])
    lines = [["", "n", *names]]
    for file, scores in result["scores"].items():
        values = [f"{scores[name]:.2f}" for name in names]
        lines.append([called[file], str(result["n"]), *values])
    tables = [grid(lines, texts=1)]
    if any(result["left_out"].values()):
        left = ", ".join(f"{count} of {called[file]}" for file, count in result["left_out"].items())
        tables.append(f"left out, not in all files: {left}")
    columns = ["p", "p_holm", "mcnemar_p", "mcnemar_p_holm"]
    for other, tests in result["comparisons"].items():
        kept = [column for column in columns if any(column in test for test in tests.values())]
        heads = [column.replace("_", " ").replace("mcnemar", "McNemar") for column in kept]
        lines = [["", "difference", "95 % interval", *heads, "won", "lost", "tied"]]
        for name, test in tests.items():
            p = [_p(test[column]) if column in test else "" for column in kept]
            counts = [str(test[side]) for side in ("won", "lost", "tied")]
            row = [name, f"{test['difference']:+.2f}", _range(test["interval"], "+"), *p, *counts]
            lines.append(row)
        tables.append(f"{called[other]} against {called[first]}\n\n{grid(lines, texts=1)}")
        for side, questions in result.get("listed", {}).get(other, {}).items():
            if questions:
                shown = [_listed(question, called) for question in questions]
                tables += [f"{side} by {called[other]} ({names[0]})", *shown]
    return "\n\n".join(tables)


def short_names(files: Sequence[str]) -> dict[str, str]:
    """What tells files apart: their paths without the folders and names that all share."""
    parts = [file.replace(os.sep, "/").split("/") for file in files]
    for end in (0, -1):
        while all(len(p) > 1 for p in parts) and len({p[end] for p in parts}) == 1:
            parts = [p[1:] if end == 0 else p[:-1] for p in parts]
    return {file: "/".join(p) for file, p in zip(files, parts, strict=True)}


def samples(predictions: Sequence[Mapping[str, Any]], count: int = 5) -> str:
    """A few answers, evenly spread over the file, each with the best triple that names it."""
    step = max(1, (len(predictions) - 1) // max(1, count - 1))
    return "\n".join(_sample(prediction) for prediction in predictions[::step][:count])


def _sample(prediction: Mapping[str, Any]) -> str:
    answers = prediction["answers"]
    triples = [e["triple"] for e in prediction["evidence"] if e["in_prompt"]]
    naming = [t for t in triples if t[0] in answers or t[2] in answers]
    ground = " | ".join(naming[0]) if naming else "no triple that was read names it"
    lines = (
        prediction["question"],
        f"  answer  {', '.join(answers) or '(none)'}",
        f"  gold    {', '.join(prediction['ground_truth'])}",
        f"  from    {ground}",
    )
    return "\n".join(lines)


def _listed(question: Mapping[str, Any], called: Mapping[str, str]) -> str:
    """A question with its golds, and what each file answers."""
    lines = [f"- {question['id']}: {question['question'] or '(no question text)'}"]
    lines.append(f"  - gold: {' / '.join(question['ground_truth'])}")
    for file, prediction in question["predictions"].items():
        text = prediction if isinstance(prediction, str) else "\n".join(prediction)
        answers = " / ".join(line.strip() for line in text.split("\n") if line.strip())
        cut = answers[:MAX_TEXT] + "..." if len(answers) > MAX_TEXT else answers
        lines.append(f"  - {called[file]}: {cut or '(none)'}")
    return "\n".join(lines)


def _with_range(panel: Mapping[str, Any], score: str) -> str:
    return f"{panel[score]:.1f} [{_range(panel['intervals'][score], digits=1)}]"


def _p(value: float) -> str:
    return "<0.0001" if value < 0.0001 else f"{value:.4f}"


def _range(ends: Sequence[float], sign: str = "", digits: int = 2) -> str:
    return " to ".join(f"{end:{sign}.{digits}f}" for end in ends)
