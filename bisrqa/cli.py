"""The command line: ``bisrqa train``, ``evaluate``, ``sweep``, ``retrieve``, ``score``, ..."""

import dataclasses
import json
import logging
import sys
from pathlib import Path
from typing import Any, Literal

import jsonargparse

from bisrqa import config as configs
from bisrqa import metrics, report, text_commands
from bisrqa.command_line import (
    add_output,
    check_out,
    first_process,
    guarded,
    option,
    parser_of,
    several,
    show,
    written,
)

logger = logging.getLogger("bisrqa")

AS_CONFIGURED = "as configured"


def main(words: list[str] | None = None) -> int:
    """Run one subcommand; returns the exit status."""
    words = sys.argv[1:] if words is None else words
    commands = {
        "train": train,
        "evaluate": evaluate,
        "plan": plan,
        "prepare": prepare,
        "sweep": sweep,
        **text_commands.COMMANDS,
        "train-retriever": train_retriever,
        "train-reranker": train_reranker,
        "retrieve": retrieve,
        "score": score,
        "compare": compare,
    }
    if not words or words[0] not in commands:
        print(
            f"usage: bisrqa {{{','.join(commands)}}} ...  (bisrqa COMMAND --help says more)",
            file=sys.stderr,
        )
        return 0 if words and words[0] in ("-h", "--help") else 2
    return commands[words[0]](words[1:])


def train(words: list[str] | None = None) -> int:
    """``train --config FILE [--plan] [--part.setting value ...]``."""
    parser = parser_of(
        "train",
        "--config FILE [--plan] [--part.setting VALUE ...]",
        "Train BiS-RQA, or go on with a run that was interrupted.",
    )
    parser.add_argument("--plan", action="store_true", help="Print what would be done and stop.")
    configs.add_arguments(parser)
    namespace = parser.parse_args(words)
    return guarded(lambda: _train(parser, namespace))


def _train(parser: jsonargparse.ArgumentParser, namespace: jsonargparse.Namespace) -> None:
    from bisrqa import evaluation, runs, training

    config = configs.from_namespace(parser, namespace)
    if first_process():
        print(runs.plan(config))
    if namespace.plan:
        return
    training.run(config)
    after = config.evaluation.after_training
    if after == "none" and first_process():
        print(f"trained: now  python evaluate.py --checkpoint {config.run_dir}")
    elif after != "none" and first_process():
        if after == "compare":
            rows = evaluation.compare(config, progress=True)
        else:
            run_dir = config.run_dir
            out = evaluation.usual_folder(config, run_dir)
            rows = {"trained": evaluation.evaluate(config, out, run_dir=run_dir, progress=True)}
        answered = evaluation.usual_folder(config, config.run_dir) / evaluation.PREDICTIONS
        some = report.samples(list(metrics.read_predictions(answered)))
        print(f"\n{some}\n\n{report.table(rows)}\n\nresults are in {config.run_dir}")


def plan(words: list[str] | None = None) -> int:
    """``plan --config FILE [--gpu NAME] [--json] [--part.setting value ...]``."""
    parser = parser_of(
        "plan",
        "--config FILE [--gpu NAME] [--json] [--part.setting VALUE ...]",
        "Say what a run will need of memory, disk and time; reads no weights.",
    )
    parser.add_argument(
        "--gpu", type=str | None, default=None, help="Such as a100-80; else this CPU."
    )
    parser.add_argument("--json", action="store_true", help="Bytes and seconds as JSON.")
    configs.add_arguments(parser)
    namespace = parser.parse_args(words)
    return guarded(lambda: _plan(parser, namespace))


def _plan(parser: jsonargparse.ArgumentParser, namespace: jsonargparse.Namespace) -> None:
    from bisrqa import planning

    found = planning.plan(configs.from_namespace(parser, namespace), namespace.gpu)
    as_json = json.dumps(dataclasses.asdict(found), indent=1)
    print(as_json if namespace.json else planning.table(found))


def prepare(words: list[str] | None = None) -> int:
    """``prepare --config FILE [--split NAME,...] [--engine NAME] [--workers N] ...``."""
    parser = parser_of(
        "prepare",
        "--config FILE [--split NAME,NAME] [--engine local|processes|ray] [--workers N] "
        "[--shard_questions N] [--part.setting VALUE ...]",
        "Extract, embed, retrieve and tokenise once, for training and evaluation, which otherwise "
        "do so themselves; goes on where it stopped. Without --split the splits that both read.",
    )
    parser.add_argument("--split", type=str | None, default=None, help="With commas between.")
    parser.add_argument(
        "--engine",
        type=Literal["local", "processes", "ray"],  # pyright: ignore[reportArgumentType]
        default="local",
        help="This process, several, or a Ray cluster (extra ray), which shares the cache folder.",
    )
    parser.add_argument("--workers", type=int, default=1, help="Shards that are made at a time.")
    parser.add_argument(
        "--shard_questions", type=int, default=256, help="So much is lost at most by a failure."
    )
    configs.add_arguments(parser)
    namespace = parser.parse_args(words)
    return guarded(lambda: _prepare(parser, namespace))


def _prepare(parser: jsonargparse.ArgumentParser, namespace: jsonargparse.Namespace) -> None:
    import torch
    from transformers import AutoTokenizer

    from bisrqa.packaged import default_cache_dir, resolve_model
    from bisrqa.prepare import Preparation, asked_for
    from bisrqa.prompt import PromptBuilder

    config = configs.from_namespace(parser, namespace)
    cache_dir = Path(config.cache_dir) if config.cache_dir else default_cache_dir()
    source = resolve_model(config.generator.model, cache_dir)
    tokenizer = AutoTokenizer.from_pretrained(source, revision=config.generator.revision)
    builder = PromptBuilder(tokenizer, config.prompt, config.encoder.num_soft_tokens)
    preparation = Preparation(
        config,
        cache_dir,
        device="cuda" if torch.cuda.is_available() else "cpu",
        engine=namespace.engine,
        workers=namespace.workers,
        shard_questions=namespace.shard_questions,
        progress=True,
    )
    names = None if namespace.split is None else namespace.split.split(",")
    for split, limit in asked_for(config, names):
        found = preparation.examples(split, limit)
        preparation.tokenised(found, builder)
        print(f"{split}: {len(found)} questions in {found.folder}")


def evaluate(words: list[str] | None = None) -> int:
    """``evaluate --checkpoint DIR [--split NAME] [--limit N] [--decode HOW] [--out DIR] ...``."""
    parser = parser_of(
        "evaluate",
        "--checkpoint DIR [--split NAME] [--limit N] [--engine NAME] [--decode HOW] [--out DIR] "
        "[--part.setting VALUE ...]",
        "Answer a split with a trained run, or with the untrained language model.",
    )
    parser.add_argument("--checkpoint", type=str | None, default=None, help="A run's folder.")
    parser.add_argument(
        "--untrained",
        action="store_true",
        help="The base model of --config, without a soft prompt.",
    )
    _add_split(parser)
    parser.add_argument(
        "--engine",
        type=Literal["transformers", "vllm"] | None,  # pyright: ignore[reportArgumentType]
        default=None,
        help="Short for --evaluation.engine.",
    )
    parser.add_argument(
        "--decode",
        type=Literal["text", "entities"] | None,  # pyright: ignore[reportArgumentType]
        default=None,
        help="Short for --generator.decode.",
    )
    parser.add_argument(
        "--out", type=str | None, default=None, help="Folder for predictions and scores."
    )
    configs.add_arguments(parser)
    words = sys.argv[1:] if words is None else words
    # The run's own config comes first, so that whatever is on the command line overrides it.
    run_dir = option(words, "--checkpoint")
    if run_dir is not None and (Path(run_dir) / "config.yaml").is_file():
        words = [f"--config={Path(run_dir) / 'config.yaml'}", *words]
    namespace = parser.parse_args(words)
    return guarded(lambda: _evaluate(parser, namespace))


def _evaluate(parser: jsonargparse.ArgumentParser, namespace: jsonargparse.Namespace) -> None:
    from bisrqa import checkpoint, evaluation

    run_dir = Path(namespace.checkpoint) if namespace.checkpoint else None
    if (run_dir is None) != namespace.untrained:
        raise ValueError("give either --checkpoint DIR, or --untrained with --config FILE")
    if run_dir is not None and not (run_dir / checkpoint.CONFIG).is_file():
        there = "is no checkpoint folder (no config.yaml)" if run_dir.is_dir() else "does not exist"
        raise ValueError(f"--checkpoint {run_dir} {there}")
    for key, value in (
        ("evaluation.engine", namespace.engine), ("generator.decode", namespace.decode),
    ):  # fmt: skip
        if value is not None:  # before other settings are held against it
            namespace[key] = value
    config = _with_split(configs.from_namespace(parser, namespace), namespace)
    if run_dir is None:
        config = configs.untrained(config)
    name = "trained" if run_dir else "untrained"
    out = Path(namespace.out) if namespace.out else evaluation.usual_folder(config, run_dir)
    state = several()
    result = evaluation.evaluate(config, out, run_dir=run_dir, progress=True, state=state)
    if state is not None:
        state.destroy_process_group()
    if first_process():
        print(f"\n{report.table({name: result})}\n\nresults are in {out}")


def sweep(words: list[str] | None = None) -> int:
    """``sweep FILE.yaml``, or ``sweep --config FILE --grid KEY=VALUE,VALUE ... [--seeds 0,1]``."""
    parser = parser_of(
        "sweep",
        "FILE.yaml [--plan]   or   --config FILE --grid KEY=V1,V2 [--grid ...] [--seeds 0,1] "
        "[--name NAME] [--set KEY=VALUE ...] [--plan]",
        "Train and evaluate many runs and print one table; goes on where it stopped.",
    )
    parser.add_argument("file", type=str | None, nargs="?", default=None, help="A sweep in YAML.")
    parser.add_argument("--config", type=str | None, default=None, help="What all runs start from.")
    parser.add_argument("--grid", type=str, action="append", help="A setting and its values.")
    parser.add_argument("--seeds", type=str, default="0", help="Seeds, with commas between.")
    parser.add_argument("--name", type=str | None, default=None, help="Names the sweep's folder.")
    parser.add_argument("--set", type=str, action="append", help="A setting of all runs.")
    parser.add_argument("--plan", action="store_true", help="List the runs and stop.")
    namespace = parser.parse_args(words)
    return guarded(lambda: _sweep(namespace))


def _sweep(namespace: jsonargparse.Namespace) -> None:
    import yaml

    from bisrqa import sweep as sweeps

    if (namespace.file is None) == (namespace.config is None):
        raise ValueError("give either a sweep's FILE.yaml, or --config FILE with --grid KEY=V1,V2")
    if namespace.file is not None:
        found = sweeps.read(Path(namespace.file))
    else:
        grid = {k: yaml.safe_load(f"[{v}]") for k, v in map(_pair, namespace.grid or [])}
        seeds = yaml.safe_load(f"[{namespace.seeds}]")
        if not all(type(seed) is int for seed in seeds):
            raise ValueError(f"--seeds must be whole numbers with commas, got {namespace.seeds!r}")
        name = namespace.name or f"sweep_{Path(namespace.config).stem}"
        found = sweeps.Sweep(name=name, config=namespace.config, grid=grid, seeds=tuple(seeds))
    settings = {k: yaml.safe_load(v) for k, v in map(_pair, namespace.set or [])}
    found = dataclasses.replace(
        found, name=namespace.name or found.name, settings={**found.settings, **settings}
    )
    todo = sweeps.cells(found)
    print("\n".join(f"{cell.label}, seed {cell.seed} -> {cell.config.run_dir}" for cell in todo))
    if not namespace.plan:
        rows = sweeps.run(found, progress=True)["runs"]
        print(f"\n{sweeps.table(rows)}\n\nresults are in {todo[0].config.output_dir}")
        if failed := sum("failed" in row for row in rows):
            raise ValueError(f"{failed} of {len(rows)} runs failed; the table says why")


def _pair(word: str) -> tuple[str, str]:
    key, equals, value = word.partition("=")
    if not equals:
        raise ValueError(f"expected KEY=VALUE, got {word!r}")
    return key, value


def train_reranker(words: list[str] | None = None) -> int:
    """``train-reranker --config FILE --out FOLDER [--part.setting VALUE ...]``."""
    parser = parser_of(
        "train-reranker",
        "--config FILE --out FOLDER [--kind features|cross_encoder] [--part.setting VALUE ...]",
        "Learn to rank from questions whose support is known. features: a small network for "
        "--kg2rag.ranker FOLDER, in seconds; cross_encoder: one for --cross_encoder.model FOLDER, "
        "in minutes. Prints JSON.",
    )
    parser.add_argument("--out", type=str, required=True, help="Folder for the ranker.")
    parser.add_argument(
        "--kind",
        type=Literal["features", "cross_encoder"],  # pyright: ignore[reportArgumentType]
        default="features",
        help="What is trained.",
    )
    configs.add_arguments(parser)
    namespace = parser.parse_args(words)
    return guarded(lambda: _train_reranker(parser, namespace))


def _train_reranker(parser: jsonargparse.ArgumentParser, namespace: jsonargparse.Namespace) -> None:
    from bisrqa import cross_encoder_training, ranker_training

    config = configs.from_namespace(parser, namespace)
    kinds = {"features": ranker_training, "cross_encoder": cross_encoder_training}
    report = kinds[namespace.kind].run(config, Path(namespace.out), progress=True)
    print(json.dumps(report, indent=1))


def train_retriever(words: list[str] | None = None) -> int:
    """``train-retriever --config FILE [--out FOLDER] [--part.setting VALUE ...]``."""
    parser = parser_of(
        "train-retriever",
        "--config FILE [--out FOLDER] [--part.setting VALUE ...]",
        "Learn which relations the walk should follow, from questions and their answers, in "
        "minutes. Writes the folder that retriever.learned names. Prints JSON.",
    )
    parser.add_argument(
        "--out", type=str | None, default=None, help="Another folder than retriever.learned."
    )
    configs.add_arguments(parser)
    namespace = parser.parse_args(words)
    return guarded(lambda: _train_retriever(parser, namespace))


def _train_retriever(
    parser: jsonargparse.ArgumentParser, namespace: jsonargparse.Namespace
) -> None:
    from bisrqa import retriever_training

    config = configs.from_namespace(parser, namespace)
    out = namespace.out or config.retriever.learned
    if out is None:
        raise ValueError("name a folder for what is learnt: --retriever.learned FOLDER")
    print(json.dumps(retriever_training.run(config, Path(out), progress=True), indent=1))


def retrieve(words: list[str] | None = None) -> int:
    """``retrieve --config FILE [--split NAME] [--limit N] [--out FILE] [--part.setting VALUE]``."""
    parser = parser_of(
        "retrieve",
        "--config FILE [--split NAME] [--limit N] [--head NAME] [--out FILE.json] "
        "[--part.setting VALUE ...]",
        "Score what retrieval keeps of the gold answers, without a language model; prints JSON. "
        "All questions of the split, unless --limit says otherwise.",
    )
    _add_split(parser)
    parser.add_argument("--out", type=str | None, default=None, help="File for the scores.")
    configs.add_arguments(parser)
    namespace = parser.parse_args(words)
    return guarded(lambda: _retrieve(parser, namespace))


def _retrieve(parser: jsonargparse.ArgumentParser, namespace: jsonargparse.Namespace) -> None:
    from bisrqa import recall

    check_out(namespace.out)
    if namespace.limit == AS_CONFIGURED:  # the config's is meant for answering, which is slow
        namespace.limit = None
    config = _with_split(configs.from_namespace(parser, namespace), namespace)
    print(written(recall.evaluate(config, progress=True), namespace.out))


def _add_split(parser: jsonargparse.ArgumentParser) -> None:
    """Short names of settings that are changed often."""
    shorts: dict[str, tuple[Any, Any]] = {
        "split": (str | None, None),
        "limit": (int | None | Literal["as configured"], AS_CONFIGURED),  # null is a limit too
    }
    for name, (kind, usual) in shorts.items():
        parser.add_argument(
            f"--{name}", type=kind, default=usual, help=f"Short for --evaluation.{name}."
        )
    parser.add_argument(
        "--topics",
        type=Literal["gold", "off"] | None,  # pyright: ignore[reportArgumentType]
        default=None,
        help="Short for --data.topics.",
    )


def _with_split(config: configs.RunConfig, namespace: jsonargparse.Namespace) -> configs.RunConfig:
    chosen: dict[str, Any] = {"split": namespace.split} if namespace.split is not None else {}
    if namespace.limit != AS_CONFIGURED:
        chosen["limit"] = namespace.limit
    evaluation = dataclasses.replace(config.evaluation, **chosen)
    data = config.data
    if namespace.topics is not None:
        data = dataclasses.replace(data, topics=namespace.topics)
    return dataclasses.replace(config, evaluation=evaluation, data=data)


def score(words: list[str] | None = None) -> int:
    """``score FILE [--table] [--out FILE.json]``: the panel of any predictions file."""
    parser = parser_of(
        "score",
        "FILE [--table] [--out FILE.json]",
        "Score a predictions file (.jsonl or .jsonl.gz): one JSON object, all scores in percent.",
    )
    parser.add_argument("file", type=str, help="Lines with prediction and ground_truth.")
    add_output(parser)
    namespace = parser.parse_args(words)
    return guarded(lambda: show(metrics.score_file(namespace.file), report.score_tables, namespace))


def compare(words: list[str] | None = None) -> int:
    """``compare A B [C ...] [--metric NAME ...] [--intersect] [--list N] [--plot FILE] ...``."""
    parser = parser_of(
        "compare",
        "A B [C ...] [--metric NAME ...] [--intersect] [--list N] [--table] [--out FILE.json]"
        " [--plot FILE.png]",
        "Compare predictions files with the first, question by question.",
    )
    parser.add_argument("files", type=str, nargs="+", help="Predictions files with ids.")
    parser.add_argument(
        "--metric", type=str, nargs="+", default=None, help="Scores to compare, as in `score`."
    )
    parser.add_argument(
        "--intersect", action="store_true", help="Compare the questions that are in all files."
    )
    parser.add_argument(
        "--list", type=int, default=0, help="Show so many questions won and lost in full."
    )
    parser.add_argument(
        "--plot", type=str | None, default=None, help="Draw where questions are lost (.png, .svg)."
    )
    add_output(parser)
    namespace = parser.parse_args(words)
    return guarded(lambda: _compare(namespace))


def _compare(namespace: jsonargparse.Namespace) -> None:
    from bisrqa import compare as comparing

    result = comparing.compare(
        namespace.files,
        namespace.metric or comparing.METRICS,
        intersect=namespace.intersect,
        num_listed=namespace.list,
    )
    if namespace.plot:
        comparing.draw(namespace.files, Path(namespace.plot), intersect=namespace.intersect)
    show(result, report.comparison_tables, namespace)
