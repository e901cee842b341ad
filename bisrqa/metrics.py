"""Answer metrics: strings in, numbers out; every score carries the name of its definition.

A preset is a function of one question, ``(lines, golds) -> {name: score}``, with scores as
fractions: ``lines`` from ``split_answers``, ``golds`` a non-empty list of acceptable answers.
``panel`` averages all presets over a file. An empty prediction scores 0 everywhere; a gold that
normalises to the empty string counts in the denominators but matches nothing.

Where a definition leaves a choice, the comment at that line says which one reproduces the published
outputs used as test data.
"""

import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from bisrqa.text import contains_normalised, normalise


def split_answers(prediction: str | list[str]) -> list[str]:
    """The lines of a prediction, blank and repeated ones included.

    Only a newline separates answers. A list is taken as lines already split: RoG's code reorders
    a list by frequency and drops repeats, but its precision on a string is over all the lines, and
    only that reproduces the published outputs.
    """
    parts = [prediction] if isinstance(prediction, str) else prediction
    return [line for part in parts for line in part.split("\n")]


def split_golds(ground_truth: str | list[str]) -> list[str]:
    """The gold answers: a list as it is (repeats kept), a string by its non-blank lines."""
    if isinstance(ground_truth, str):
        return [line for line in ground_truth.split("\n") if line.strip()]
    return list(ground_truth)


def rog(lines: list[str], golds: list[str]) -> dict[str, float]:
    """RoG: golds found anywhere in the joined text.

    Precision divides the golds found by the number of lines, so it and F1 can exceed 1: the
    published behaviour. Blank and repeated lines and repeated golds all count.
    """
    text = normalise(" ".join(lines))
    found = sum(contains_normalised(text, normalise(gold)) for gold in golds)
    precision, recall = _ratio(found, len(lines)), _ratio(found, len(golds))
    return {
        "recall": recall,
        "hit": float(found > 0),
        "precision": precision,
        "f1": _f1(precision, recall),
    }


def gnn_rag(lines: list[str], golds: list[str]) -> dict[str, float]:
    """GNN-RAG's addition to ``rog``: any gold in the first line."""
    # GNN-RAG strips the prediction before splitting it: its first line is the first non-blank one.
    first = normalise(next((line for line in lines if line.strip()), ""))
    return {"hit1": float(any(contains_normalised(first, normalise(gold)) for gold in golds))}


def gcr(lines: list[str], golds: list[str]) -> dict[str, float]:
    """GCR: recall counts golds found in the joined text, precision lines that hold some gold."""
    answers = distinct(lines)
    texts = [normalise(answer) for answer in answers]
    joined = normalise(" ".join(answers))
    # Distinct as written, before normalising; only this reproduces recall and F1.
    keys = [normalise(gold) for gold in dict.fromkeys(golds)]
    right = sum(any(contains_normalised(text, key) for key in keys) for text in texts)
    found = sum(contains_normalised(joined, key) for key in keys)
    precision, recall = _ratio(right, len(texts)), _ratio(found, len(keys))
    return {"recall": recall, "precision": precision, "f1": _f1(precision, recall)}


def one_to_one(lines: list[str], golds: list[str]) -> dict[str, float]:
    """SubgraphRAG's corrected evaluator: each line may answer one gold only.

    Golds, longest first, each take the first free line that contains them, lines longest first too.
    The answer marker, the "none" filter and reverse containment are not part of this preset. EM is
    1 where F1 is 1.
    """
    # Distinct as written on both sides, as in gcr; the ordering by raw or normalised length made no
    # difference to the published outputs, and ties keep the order given.
    free = [normalise(answer) for answer in sorted(distinct(lines), key=len, reverse=True)]
    keys = [normalise(gold) for gold in sorted(dict.fromkeys(golds), key=len, reverse=True)]
    num_lines, matched = len(free), 0
    for key in keys:
        taken = next((i for i, text in enumerate(free) if contains_normalised(text, key)), None)
        if taken is not None:
            del free[taken]
            matched += 1
    f1 = _f1(_ratio(matched, num_lines), _ratio(matched, len(keys)))
    return {"f1": f1, "em": float(0 < matched == num_lines == len(keys))}


def strict(lines: list[str], golds: list[str]) -> dict[str, float]:
    """Exact set match after normalising: the headline definition."""
    # Distinct after normalising, without lines that normalise to nothing ("---"); only this
    # reproduces precision. An empty gold stays in the gold set, where no line can equal it.
    answers = {normalise(line) for line in lines} - {""}
    keys = {normalise(gold) for gold in golds}
    matched = len(answers & keys)
    precision, recall = _ratio(matched, len(answers)), _ratio(matched, len(keys))
    return {
        "precision": precision,
        "recall": recall,
        "f1": _f1(precision, recall),
        "hit": float(matched > 0),
        "em": float(matched > 0 and answers == keys),
    }


PRESETS: dict[str, Callable[[list[str], list[str]], dict[str, float]]] = {
    "rog": rog,
    "gnn-rag": gnn_rag,
    "gcr": gcr,
    "one_to_one": one_to_one,
    "strict": strict,
}


def panel(records: Iterable[Mapping]) -> dict[str, float | int]:
    """Mean of every preset over questions, read once and in constant memory.

    Args:
        records: Each with ``prediction`` (str with newlines, or list of str) and ``ground_truth``
            (list of str, or str with newlines); ``id`` is used in messages only.

    Returns:
        ``preset.score`` as a percentage rounded to 2 digits, and ``n``, the number of questions.
    """
    sums: dict[str, float] = {}
    num_questions = 0
    for num_questions, record in enumerate(records, start=1):
        if problem := _problem(record):
            raise ValueError(f"record {num_questions}: {problem}")
        lines = split_answers(record["prediction"])
        golds = split_golds(record["ground_truth"])
        for preset, score in PRESETS.items():
            for name, value in score(lines, golds).items():
                key = f"{preset}.{name}"
                sums[key] = sums.get(key, 0.0) + value
    if not num_questions:
        raise ValueError("no predictions")
    means = {key: round(100 * total / num_questions, 2) for key, total in sums.items()}
    return {**means, "n": num_questions}


def read_predictions(path: str | Path) -> Iterator[dict]:
    """Yield the records of a ``.jsonl`` or ``.jsonl.gz`` file one by one, checked.

    Blank lines are skipped. ``id`` (str or int) may be absent; the ids seen are all that is kept.

    Raises:
        ValueError: With ``file:line`` and the field, at the first line that is no usable record.
    """
    path = Path(path)
    if not path.name.endswith((".jsonl", ".jsonl.gz")):
        raise ValueError(f"{path}: expected a .jsonl or .jsonl.gz file")
    seen: set[str | int] = set()
    empty = True
    for number, raw in _numbered_lines(path):
        where = f"{path}:{number}"
        try:
            line = raw.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise ValueError(f"{where}: not UTF-8: {error}") from error
        if not line.strip():
            continue
        empty = False
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{where}: broken JSON: {error}") from error
        if problem := _problem(record):
            raise ValueError(f"{where}: {problem}")
        if "id" in record:
            if record["id"] in seen:
                raise ValueError(f"{where}: duplicate id {record['id']!r}")
            seen.add(record["id"])
        yield record
    if empty:
        raise ValueError(f"{path}: no predictions")


def score_file(path: str | Path) -> dict[str, float | int]:
    """The panel of a predictions file."""
    return panel(read_predictions(path))


def _numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    number = 0
    with gzip.open(path) if path.name.endswith(".gz") else path.open("rb") as file:
        try:
            for number, raw in enumerate(file, start=1):
                yield number, raw
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise ValueError(f"{path}:{number + 1}: broken gzip: {error}") from error


def _problem(record: object) -> str | None:
    """What makes a record unusable, or None."""
    if not isinstance(record, Mapping):
        return f"expected an object with prediction and ground_truth, got {type(record).__name__}"
    if "id" in record and (
        isinstance(record["id"], bool) or not isinstance(record["id"], str | int)
    ):
        return f"id: expected str or int, got {record['id']!r}"
    who = f" (id {record['id']!r})" if "id" in record else ""
    for field in ("prediction", "ground_truth"):
        if field not in record:
            return f"missing field {field}{who}"
        value = record[field]
        if isinstance(value, list):
            wrong = [item for item in value if not isinstance(item, str)]
            if wrong:
                return f"{field}: expected a list of str, found {wrong[0]!r} in it{who}"
        elif not isinstance(value, str):
            return f"{field}: expected str or list of str, got {type(value).__name__}{who}"
    if not split_golds(record["ground_truth"]):
        return f"ground_truth is empty{who}"
    return None


def distinct(lines: list[str]) -> list[str]:
    """Lines stripped, without blank ones and repeats, in order of first appearance."""
    return list(dict.fromkeys(line.strip() for line in lines if line.strip()))


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _f1(precision: float, recall: float) -> float:
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0
