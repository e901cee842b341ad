"""Reader of the row schema of ``rmanluo/RoG-webqsp`` and ``rmanluo/RoG-cwq``.

One row a question: ``id``, ``question``, ``answer``, ``q_entity`` and ``graph`` (a list of [head,
relation, tail]). Rows come from parquet files or from the Hugging Face hub, and are the same
records either way. They are streamed: the full CWQ does not fit into memory as Python strings.
"""

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from bisrqa.config import DataConfig
from bisrqa.data.records import Question, Triple, is_bare_id
from bisrqa.data.tally import BadRow, Tally

logger = logging.getLogger(__name__)

COLUMNS = ("id", "question", "answer", "q_entity", "graph")
# Rows of questions that are asked over a shared graph need none of their own.
WITHOUT_GRAPH = COLUMNS[:-1]


def read(config: DataConfig, split: str, tally: Tally | None = None) -> Iterator[Question]:
    """Stream one split's questions in file order.

    Oddities that real sets hold are counted in ``tally`` and kept: topics or golds that the graph
    lacks, golds that are bare ids, repeated triples, self-loops. Rows that cannot be used raise,
    or are left out as the config says.

    Raises:
        ValueError: An unusable row (:class:`BadRow`), a missing column, or an unknown split;
        names file, row and field.
    """
    tally = Tally() if tally is None else tally
    keep = _resplit_ids(config, split)
    seen: dict[str, str] = {}
    absent = set() if keep is None else set(keep)
    for where, row in _rows(config, split):
        if keep is not None:
            if not isinstance(row["id"], str) or row["id"] not in keep:
                continue
            absent.discard(row["id"])
        try:
            question = _question(row, where, config, tally)
            if question.id in seen:
                raise BadRow(
                    f"{where}: field id: {question.id!r} was already used by {seen[question.id]}"
                )
        except BadRow as error:
            if config.on_bad_row == "error":
                raise BadRow(
                    f"{error} (leave such rows out with --data.on_bad_row skip)"
                ) from error
            tally.add("rows left out", str(error))
            continue
        seen[question.id] = where
        if not question.graph and config.graph == "question":
            if config.on_empty_graph == "error":
                raise BadRow(
                    f"{where}: field graph: no triples "
                    "(choose with --data.on_empty_graph skip or keep)"
                )
            tally.add("rows without triples", where)
            if config.on_empty_graph == "skip":
                continue
        yield question
    if absent:
        raise ValueError(
            f"{config.resplit}: split {split!r} names {len(absent)} ids "
            f"that the data lacks, e.g. {min(absent)!r}"
        )


def size(config: DataConfig, split: str) -> int | None:
    """Rows of a split, from the files' headers; None for the hub, and where rows are split anew.

    None for what cannot be read, too: :func:`read` will say what is wrong with it.
    """
    path = Path(config.path)
    if not config.path or config.resplit is not None or not path.exists():
        return None
    try:
        files = _files(path, split, False)
        return sum(pyarrow.parquet.read_metadata(file).num_rows for file in files)
    except (ValueError, OSError, pyarrow.ArrowException):
        return None


def fingerprint(config: DataConfig) -> str:
    """Names, sizes and ends of the files; a parquet file ends with statistics of its columns."""
    path = Path(config.path)
    if not config.path or not path.exists():
        return f"{config.path}@{config.revision}"
    digest = hashlib.sha256()
    for file in [path] if path.is_file() else sorted(path.rglob("*.parquet")):
        with file.open("rb") as stream:
            size = stream.seek(0, 2)
            stream.seek(max(0, size - 65536))
            digest.update(f"{file.name}/{size}/".encode() + stream.read())
    if config.resplit is not None:
        digest.update(Path(config.resplit).read_bytes())
    return digest.hexdigest()[:16]


def _resplit_ids(config: DataConfig, split: str) -> set[str] | None:
    if config.resplit is None:
        return None
    try:
        splits = json.loads(Path(config.resplit).read_text("utf8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"data.resplit: cannot read {config.resplit}: {error}") from error
    if not isinstance(splits, dict) or split not in splits:
        raise ValueError(f"data.resplit: {config.resplit} has no split {split!r}")
    ids = splits[split]
    if not isinstance(ids, list) or not all(isinstance(id_, str) for id_ in ids):
        raise ValueError(f"data.resplit: {config.resplit}: split {split!r} must be a list of ids")
    return set(ids)


def _rows(config: DataConfig, split: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if not config.path:
        raise ValueError(
            "data.path is empty: give a folder of parquet files or a hub data set name"
        )
    path = Path(config.path)
    if path.exists():
        for file in _files(path, split, config.resplit is not None):
            yield from _parquet_rows(file, _columns(config))
    elif on_hub(config):
        yield from _hub_rows(config, split)
    else:
        raise ValueError(
            f"data.path: {config.path} does not exist (give another with --data.path FOLDER)"
        )


def _files(path: Path, split: str, resplit: bool) -> list[Path]:
    """``test.parquet`` or ``test-00000-of-00002.parquet`` and so on; all files if split anew."""
    if path.is_file():
        return [path]
    files = sorted(path.rglob("*.parquet"))
    chosen = (
        files
        if resplit
        else [f for f in files if f.stem == split or f.stem.startswith(f"{split}-")]
    )
    if not chosen:
        names = ", ".join(f.name for f in files) or "no parquet files"
        raise ValueError(f"data.path: {path} has no split {split!r} (it holds {names})")
    return chosen


def _columns(config: DataConfig) -> tuple[str, ...]:
    return COLUMNS if config.graph == "question" else WITHOUT_GRAPH


def _parquet_rows(file: Path, columns: tuple[str, ...]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        with pyarrow.parquet.ParquetFile(file) as table:
            _check_columns(table.schema_arrow.names, columns, str(file))
            start = 0
            for batch in table.iter_batches(batch_size=64, columns=list(columns)):
                for offset, row in enumerate(batch.to_pylist()):
                    yield f"{file} row {start + offset}", row
                start += batch.num_rows
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{file}: not a readable parquet file: {error}") from error


def on_hub(config: DataConfig) -> bool:
    """Whether the rows come from the hub."""
    name = config.path.count("/") == 1 and not config.path.startswith((".", "~"))
    return name and not Path(config.path).exists()


def hub_fingerprint(config: DataConfig, split: str) -> str:
    """Changes with a split on the hub; without a net, with the copy of it that is here."""
    return _hub_dataset(config, split)._fingerprint


def _hub_rows(config: DataConfig, split: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    rows = _hub_dataset(config, split)
    _check_columns(rows.column_names, _columns(config), config.path)
    for number, row in enumerate(rows):
        yield f"{config.path} {split} row {number}", row


def _hub_dataset(config: DataConfig, split: str) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise ValueError(
            f"data.path: {config.path} is no folder here; "
            "to read it from the hub: pip install 'bisrqa[hub]'"
        ) from error
    name = "all" if config.resplit else split
    try:
        return datasets.load_dataset(config.path, split=name, revision=config.revision)
    except (OSError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"data.path: no folder {config.path} here, and the hub did not give it: {error}"
        ) from error


def _check_columns(names: Iterable[str], columns: Iterable[str], where: str) -> None:
    missing = [column for column in columns if column not in set(names)]
    if missing:
        raise ValueError(
            f"{where}: missing column {', '.join(missing)} (it has {', '.join(names)})"
        )


def _question(row: Mapping[str, Any], where: str, config: DataConfig, tally: Tally) -> Question:
    text = {}
    for column in ("id", "question"):
        value = row[column]
        if not isinstance(value, str) or not value.strip():
            raise BadRow(f"{where}: field {column}: expected text, got {value!r}")
        text[column] = value
    answers = _strings(row["answer"], f"{where}: field answer")
    if not answers:
        raise BadRow(f"{where}: field answer: no answers")
    topics = _strings(row["q_entity"], f"{where}: field q_entity")
    shared = config.graph != "question"
    graph = () if shared else _triples(row["graph"], where, config, tally)
    nodes = {name for triple in graph for name in (triple.head, triple.tail)}
    if not topics:
        tally.add("questions without a topic entity", f"{where}: field q_entity")
    for topic in topics:
        if graph and topic not in nodes:
            tally.add(
                "topic entities that are not in the graph", f"{where}: field q_entity: {topic!r}"
            )
    if graph and not nodes.intersection(answers):
        tally.add(
            "questions without any gold in the graph", f"{where}: field answer: {answers[0]!r}"
        )
    for answer in answers:
        if is_bare_id(answer):
            tally.add("golds that are bare ids", f"{where}: field answer: {answer!r}")
    return Question(
        id=text["id"], question=text["question"], answers=answers, topics=topics, graph=graph
    )


def _strings(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise BadRow(f"{where}: expected a list of text, got {value!r}")
    for item in value:
        if not isinstance(item, str) or not item.strip():
            raise BadRow(f"{where}: expected text, got {item!r}")
    return tuple(value)


def _triples(value: Any, where: str, config: DataConfig, tally: Tally) -> tuple[Triple, ...]:
    if not isinstance(value, list):
        raise BadRow(f"{where}: field graph: expected a list of triples, got {value!r}")
    triples: dict[Triple, None] = {}
    for position, item in enumerate(value):
        whole = isinstance(item, list | tuple) and len(item) == 3
        if not whole or not all(isinstance(part, str) and part.strip() for part in item):
            problem = f"{where}: field graph: triple {position}: expected three texts, got {item!r}"
            if config.on_bad_row == "error":
                raise BadRow(problem)
            tally.add("triples left out", problem)
            continue
        triple = Triple(*item)
        if triple in triples:
            tally.add("repeated triples (counted once)", f"{where}: field graph: {triple}")
        elif triple.head == triple.tail:
            tally.add("self-loops", f"{where}: field graph: {triple}")
        triples[triple] = None
    return tuple(triples)
