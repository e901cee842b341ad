"""What evaluations came to, for a terminal: a table (it is Markdown too), and some answers."""

from collections.abc import Mapping, Sequence
from typing import Any

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
    widths = [max(2, *map(len, column)) for column in zip(*lines, strict=True)]

    def show(cells: Sequence[str]) -> str:
        padded = [c.ljust(w) if i < texts else c.rjust(w) for i, (c, w) in enumerate(
            zip(cells, widths, strict=True)
        )]  # fmt: skip
        return f"| {' | '.join(padded)} |"

    rule = [("-" * w if i < texts else "-" * (w - 1) + ":") for i, w in enumerate(widths)]
    return "\n".join([show(lines[0]), show(rule), *map(show, lines[1:])])


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
