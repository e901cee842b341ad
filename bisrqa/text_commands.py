"""Commands about texts: ``bisrqa extract``, ``corpus``, ``show``, ``questeval``, ``uhgeval``."""

import dataclasses
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import jsonargparse

from bisrqa import config as configs
from bisrqa.command_line import check_out, guarded, parser_of, written
from bisrqa.files import write_text

logger = logging.getLogger("bisrqa")


def extract(words: list[str] | None = None) -> int:
    """``extract TEXTS --out FILE.jsonl [--extraction.setting VALUE ...]``."""
    parser = parser_of(
        "extract",
        "TEXTS --out FILE.jsonl [--config FILE] [--extraction.method NAME] "
        "[--part.setting VALUE ...]",
        "Read triples out of texts: a .txt, .md or .jsonl file, or a folder of them. Writes a "
        "line a chunk and prints JSON; goes on where it stopped.",
    )
    parser.add_argument("texts", type=str, help="A file or folder of texts.")
    parser.add_argument("--out", type=str, required=True, help="File for the triples.")
    configs.add_arguments(parser)
    namespace = parser.parse_args(words)
    return guarded(lambda: _extract(parser, namespace))


def _extract(parser: jsonargparse.ArgumentParser, namespace: jsonargparse.Namespace) -> None:
    from bisrqa import extraction
    from bisrqa.data.passages import chunks_of, read_passages
    from bisrqa.data.tally import Tally
    from bisrqa.packaged import default_cache_dir

    config = configs.from_namespace(parser, namespace)
    if not namespace.out.endswith(".jsonl"):
        raise ValueError(f"--out {namespace.out}: expected a name that ends in .jsonl")
    cache_dir = Path(config.cache_dir) if config.cache_dir else default_cache_dir()
    reader = extraction.Reader(config.extraction, cache_dir, progress=True)
    tally, data = Tally(), config.data
    passages = read_passages(Path(namespace.texts), tally)
    chunks = list(chunks_of(passages, data.chunks, data.window, data.overlap))
    for line in tally.lines():
        logger.warning("%s: %s", namespace.texts, line)
    found, report = reader(chunks)
    lines = [
        json.dumps(
            chunk._asdict()
            | {"triples": read.triples, "entities": read.entities, "events": read.events},
            ensure_ascii=False,
        )
        for chunk, read in zip(chunks, found, strict=True)
    ]
    write_text(Path(namespace.out), "".join(line + "\n" for line in lines))
    counts = {"triples": sum(len(read.triples) for read in found)}
    counts["events"] = sum(len(read.events) for read in found)
    print(json.dumps(dataclasses.asdict(report) | counts, indent=1))


def corpus(words: list[str] | None = None) -> int:
    """``corpus add FOLDER TEXTS``, ``corpus remove FOLDER --id ID ...``, ``corpus list FOLDER``."""
    parser = parser_of(
        "corpus",
        "{add,remove,list} FOLDER [TEXTS] [--id ID ...] [--config FILE] [--part.setting VALUE ...]",
        "A corpus of texts that questions can be asked over (--data.graph corpus --data.graph_path "
        "FOLDER). add: put in a .txt, .md or .jsonl file, or a folder of them; a passage whose id "
        "is there already is replaced. remove: take passages out. list: their ids and titles.",
    )
    what = Literal["add", "remove", "list"]
    parser.add_argument("what", type=what, help="What to do.")  # pyright: ignore[reportArgumentType]
    parser.add_argument("folder", type=str, help="Folder of the corpus.")
    parser.add_argument("texts", type=str | None, nargs="?", default=None, help="To add.")
    parser.add_argument("--id", type=str, action="append", help="A passage to remove.")
    configs.add_arguments(parser)
    namespace = parser.parse_args(words)
    return guarded(lambda: _corpus(parser, namespace))


def _corpus(parser: jsonargparse.ArgumentParser, namespace: jsonargparse.Namespace) -> None:
    from bisrqa import corpus as corpora
    from bisrqa import data
    from bisrqa.data.tally import Tally
    from bisrqa.graph.embed import store_of
    from bisrqa.packaged import default_cache_dir

    what, texts, ids = namespace.what, namespace.texts, namespace.id or []
    if (what == "add") != (texts is not None) or (what == "remove") != bool(ids):
        raise ValueError("corpus add takes TEXTS, corpus remove takes --id ID, corpus list neither")
    if what == "list":
        for passage in corpora.passages_of(namespace.folder):
            print(json.dumps({"id": passage.id, "title": passage.title}, ensure_ascii=False))
        return
    config = configs.from_namespace(parser, namespace)
    cache_dir = Path(config.cache_dir) if config.cache_dir else default_cache_dir()
    store = store_of(config.embedder, cache_dir, config.embedder.text_prompt)
    tally = Tally()
    put = list(data.texts(Path(texts), tally)) if texts else []
    for line in tally.lines():
        logger.warning("%s: %s", texts, line)
    change = corpora.update(
        namespace.folder, config, store, cache_dir, put=put, remove=ids, progress=True
    )
    print(json.dumps(dataclasses.asdict(change), indent=1))


def show(words: list[str] | None = None) -> int:
    """``show CORPUS [--event TEXT] [--limit N] --out FILE.svg|.html``."""
    parser = parser_of(
        "show",
        "CORPUS [--event TEXT] [--limit N] --out FILE.svg|FILE.html",
        "Draw events of a corpus with the texts that tell of them: those whose name holds a text, "
        "or those that several texts tell of. A .svg shows the first, a .html the first --limit.",
    )
    parser.add_argument("corpus", type=str, help="Folder of a corpus, or of a cached one.")
    parser.add_argument("--event", type=str | None, default=None, help="Text in the event's name.")
    parser.add_argument("--limit", type=int, default=10, help="Events on a page.")
    parser.add_argument("--out", type=str, required=True, help="File for the picture.")
    namespace = parser.parse_args(words)
    return guarded(lambda: _show(namespace))


def _show(namespace: jsonargparse.Namespace) -> None:
    from bisrqa import picture
    from bisrqa.corpus import Corpus

    if not namespace.out.endswith((".svg", ".html")):
        raise ValueError(f"--out {namespace.out}: expected a name that ends in .svg or .html")
    found = picture.find(Corpus.open(namespace.corpus).graph, namespace.event)
    if not found:
        what = "with that text in its name" if namespace.event else "that several texts tell of"
        raise ValueError(f"{namespace.corpus} has no event {what}")
    some = found[: namespace.limit]
    drawn = picture.svg(found[0]) if namespace.out.endswith(".svg") else picture.html(some)
    write_text(Path(namespace.out), drawn)
    print(f"{len(found)} events; drawn in {namespace.out}: {some[0].name}")


def questeval(words: list[str] | None = None) -> int:
    """``questeval PREDICTIONS [--questions FILE] [--judge NAME] [--out FILE.json]``."""
    parser = parser_of(
        "questeval",
        "PREDICTIONS.jsonl [--questions FILE] [--judge none|llm|server] [--chat.setting VALUE ...] "
        "[--out FILE.json]",
        "Score long answers as CRUD-RAG does: BLEU, ROUGE-L, sentence similarity and, with a "
        "judge, RAGQuestEval. Lines with prediction, ground_truth and, for stored questions, "
        "task and id.",
    )
    parser.add_argument("predictions", type=str, help="JSON lines.")
    parser.add_argument(
        "--questions", type=str | None, default=None, help="Stored questions, or a folder of them."
    )
    _add_chat(parser, Literal["none", "llm", "server"], "none")
    namespace = parser.parse_args(words)
    return guarded(lambda: _questeval(parser, namespace))


def _add_chat(parser: jsonargparse.ArgumentParser, kinds: Any, usual: str) -> None:
    parser.add_argument(
        "--judge", type=kinds, default=usual, help="The language model that is asked."
    )
    parser.add_class_arguments(configs.ChatConfig, "chat")
    parser.add_class_arguments(configs.EmbedderConfig, "embedder")
    parser.add_argument(
        "--similarity", type=bool, default=True, help="Sentence similarity, by the embedder."
    )
    parser.add_argument("--limit", type=int | None, default=None, help="Only the first so many.")
    parser.add_argument("--out", type=str | None, default=None, help="A file for the scores.")


def _models(parser: jsonargparse.ArgumentParser, namespace: jsonargparse.Namespace) -> Any:
    """The chat and the embedding function that the options ask for; None for what is not wanted."""
    from bisrqa import chat
    from bisrqa.graph.embed import store_of
    from bisrqa.packaged import default_cache_dir

    built, cache_dir = parser.instantiate(namespace), default_cache_dir()
    talker = None
    if namespace.judge != "none":
        talker = chat.build(namespace.judge, built.chat, cache_dir, "chat.model")
    if not namespace.similarity:
        return talker, None
    store = store_of(built.embedder, cache_dir, built.embedder.text_prompt)

    def embed(texts: Any) -> Any:
        store.fill(texts, progress=True)
        return store(texts)

    return talker, embed


def _questeval(parser: jsonargparse.ArgumentParser, namespace: jsonargparse.Namespace) -> None:
    from bisrqa import questeval as scoring
    from bisrqa.predictions import read_predictions

    check_out(namespace.out)
    records = list(read_predictions(namespace.predictions))[: namespace.limit]
    talker, embed = _models(parser, namespace)
    questions = scoring.stored(Path(namespace.questions)) if namespace.questions else None
    print(written(scoring.evaluate(records, questions, talker, embed), namespace.out))


def uhgeval(words: list[str] | None = None) -> int:
    """``uhgeval FILE [--judge llm|server] [--tasks NAME ...] [--out FILE.json]``."""
    parser = parser_of(
        "uhgeval",
        "FILE.jsonl [--judge llm|server] [--tasks NAME ...] [--limit N] [--chat.setting VALUE ...] "
        "[--out FILE.json]",
        "Does a language model make things up? UHGEval's generative, selective and discriminative "
        "tasks. Prints JSON.",
    )
    parser.add_argument("file", type=str, help="Rows of UHGEval, gzipped or not.")
    parser.add_argument("--tasks", type=str, nargs="+", default=None, help="Some of them only.")
    _add_chat(parser, Literal["llm", "server"], "llm")
    namespace = parser.parse_args(words)
    return guarded(lambda: _uhgeval(parser, namespace))


def _uhgeval(parser: jsonargparse.ArgumentParser, namespace: jsonargparse.Namespace) -> None:
    from bisrqa import uhgeval as scoring

    check_out(namespace.out)
    tasks = namespace.tasks or scoring.TASKS
    if unknown := set(tasks) - set(scoring.TASKS):
        raise ValueError(
            f"--tasks: {', '.join(sorted(unknown))}: none of {', '.join(scoring.TASKS)}"
        )
    rows = scoring.read(Path(namespace.file))[: namespace.limit]
    talker, embed = _models(parser, namespace)
    print(written(scoring.evaluate(rows, talker, tasks, embed), namespace.out))


COMMANDS: dict[str, Callable[[list[str] | None], int]] = {
    "extract": extract,
    "corpus": corpus,
    "show": show,
    "questeval": questeval,
    "uhgeval": uhgeval,
}
