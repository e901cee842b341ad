"""Batch evaluation: a predictions file, the scores, and a comparison with the untrained model."""

import contextlib
import dataclasses
import hashlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState

from bisrqa import (
    checkpoint,
    data,
    generator,
    memory,
    metrics,
    partial,
    provenance,
    runs,
    text_metrics,
    text_recall,
    vllm_engine,
    waterfall,
)
from bisrqa import config as configs
from bisrqa.answering import Engine, Reply, answer
from bisrqa.config import RunConfig, to_dict
from bisrqa.consistency import Vote
from bisrqa.examples import Example
from bisrqa.facts import Fact, stated_golds
from bisrqa.files import check_writable, write_text
from bisrqa.heads import Evidence
from bisrqa.model import BiSRQA, Prepared
from bisrqa.packaged import default_cache_dir
from bisrqa.prepare import Chosen, Preparation
from bisrqa.retrieval.passages import is_structure

logger = logging.getLogger(__name__)

ANSWERING = ("encode", "prefill", "decode")
"""What the time of an answer goes into, once its evidence is there."""
PREDICTIONS, METRICS = "predictions.jsonl", "metrics.json"


def evaluate(
    config: RunConfig,
    out: Path,
    *,
    run_dir: Path | None,
    progress: bool = False,
    state: PartialState | None = None,
) -> dict[str, Any]:
    """Answer a split and score it; goes on where an interrupted evaluation of the same stopped.

    Args:
        config: ``evaluation`` says which split and how many.
        out: Folder for ``predictions.jsonl`` and ``metrics.json``.
        run_dir: A trained run's folder; None evaluates the untrained language model, which
            cannot read a soft prompt.
        progress: Show progress bars.
        state: The processes that share the questions, each of which calls this; None is this one.

    Returns:
        What ``metrics.json`` holds.

    Raises:
        ValueError: ``out`` holds another evaluation's results, or checkpoint or data are bad.
        MemoryError: A batch does not fit; says what to change.
    """
    for key, on, plain in (
        ("prompt.soft_prompt", config.prompt.soft_prompt, "false"),
        ("prompt.order attention", config.prompt.order == "attention", "score"),
    ):
        if on and run_dir is None:
            raise ValueError(
                f"{key} needs trained weights: set it to {plain}, or name a checkpoint"
            )
    step_dir = checkpoint.best(run_dir) if run_dir else None
    asked = config if run_dir is None else runs.with_retriever(config, run_dir)
    identity = _identity(config, asked.retriever.learned, step_dir)
    main = state is None or state.is_main_process
    if (out / METRICS).exists():
        done = json.loads((out / METRICS).read_text("utf8"))
        if done.get("identity") != identity:
            raise ValueError(
                f"{out} holds the results of another evaluation; choose another --out or delete it"
            )
        if main:
            logger.info("%s is complete; nothing is answered again", out)
            _draw(done, out)
        return done
    if config.evaluation.engine == "vllm":
        vllm_engine.check(config, state.num_processes if state else 1)
    check_writable(out, "--out")
    check_writable(_cache_dir(config), "cache_dir", needed=False)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if state is not None and state.device is not None:
        device = state.device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    if main:
        done = partial.collect(out, identity)
        if done:
            logger.info("going on: %d questions are answered already", len(done))
    _wait(state)
    order = _answer(asked, out, identity, step_dir, device, state, progress=progress and main)
    _wait(state)
    if main:
        done = partial.collect(out, identity)
        predictions = [done[name] for name in order]
        result = _score(predictions) | {
            "latency": _latency(predictions),
            **_speed(predictions),
            "identity": identity,
            "split": config.evaluation.split,
            "checkpoint": str(step_dir) if step_dir else None,
            "peak_memory_bytes": memory.peak_bytes(device),
            "engine": config.evaluation.engine,
            "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
            "processes": state.num_processes if state else 1,
        }
        lines = (json.dumps(p, ensure_ascii=False) + "\n" for p in predictions)
        write_text(out / PREDICTIONS, "".join(lines))
        write_text(out / METRICS, json.dumps(result, indent=1) + "\n")
        for file in partial.files_in(out):
            file.unlink()
        _draw(result, out)
    _wait(state)
    return json.loads((out / METRICS).read_text("utf8"))


def _cache_dir(config: RunConfig) -> Path:
    return Path(config.cache_dir) if config.cache_dir else default_cache_dir()


def _wait(state: PartialState | None) -> None:
    """Until all processes are here."""
    if state is not None:
        state.wait_for_everyone()


def compare(config: RunConfig, *, progress: bool = False) -> dict[str, dict[str, Any]]:
    """Evaluate a run beside the untrained language model; writes the run's ``metrics.json``."""
    run_dir = config.run_dir
    beside = usual_folder(config, run_dir).parent
    plain = configs.untrained(config)
    stated = dataclasses.replace(plain, prompt=dataclasses.replace(plain.prompt, hard_prompt=True))
    without = dataclasses.replace(
        plain,
        prompt=dataclasses.replace(plain.prompt, hard_prompt=False),
        evaluation=dataclasses.replace(plain.evaluation, subgraphs=1),
    )
    rows = {
        "untrained, question only": (without, None),
        "untrained, with triples": (stated, None),
        "trained": (config, run_dir),
    }
    result = {}
    for name, (row, trained) in rows.items():
        logger.info("evaluating: %s", name)
        folder = beside / name.replace(", ", "-").replace(" ", "-")
        result[name] = evaluate(row, folder, run_dir=trained, progress=progress)
    write_text(run_dir / METRICS, json.dumps(result, indent=1) + "\n")
    return result


def _answer(
    config: RunConfig,
    out: Path,
    identity: str,
    step_dir: Path | None,
    device: torch.device,
    state: PartialState | None,
    *,
    progress: bool,
) -> list[str]:
    """Answer this process's share of what is left; each batch is on disk as soon as it is answered.

    Returns:
        All questions of the split, in the order of the data.
    """
    rank, world = (state.process_index, state.num_processes) if state else (0, 1)
    cache_dir = _cache_dir(config)
    done = {record["id"] for record in partial.read(partial.file_of(out), identity)}
    split, limit = config.evaluation.split, config.evaluation.limit
    preparation = Preparation(config, cache_dir, device=str(device), progress=progress)
    with state.main_process_first() if state else contextlib.nullcontext():
        found = preparation.examples(split, limit)
    order = [heading.id for heading in found.headings]
    if not order:
        raise ValueError(f"split {split!r} has no questions")
    mine = [place for place, name in enumerate(order) if name not in done][rank::world]
    if not mine:
        return order
    before = {stage: seconds / len(found) for stage, seconds in found.seconds.items()}
    llm = generator.load(config.generator, cache_dir, device=device, tuned=step_dir is not None)
    model = BiSRQA(config, llm, dim=found.dim).eval()
    if step_dir:
        checkpoint.load(step_dir, model, base_name=config.generator.model)
    questions = Chosen(preparation.tokenised(found, model.builder), mine)
    with _engine(config, model, cache_dir, step_dir, device) as engine:
        vote = Vote(engine, config.evaluation.subgraphs, config.seed)
        for batch in answer(
            model, questions, batch_tokens=config.evaluation.batch_tokens, engine=vote,
            progress=progress, describe=f"answering {split}",
        ):  # fmt: skip
            records = [
                _record(model, vote.prompts(questions[reply.place]), reply, before)
                for reply in batch
            ]
            partial.append(partial.file_of(out, rank), identity, records)
    return order


@contextlib.contextmanager
def _engine(
    config: RunConfig, model: BiSRQA, cache_dir: Path, step_dir: Path | None, device: torch.device
) -> Iterator[Engine]:
    """What replies, for as long as it is held."""
    if config.evaluation.engine == "transformers":
        model.generator.merge_adapters()
        model.to(device)
        yield model.generate
    else:
        adapter = checkpoint.adapter(step_dir) if step_dir else None
        with vllm_engine.started(model, config, cache_dir, adapter) as engine:
            yield engine


def _record(
    model: BiSRQA, prompts: Sequence[Prepared], reply: Reply, before: Mapping[str, float]
) -> dict[str, Any]:
    """What is written of an answer.

    Args:
        model: Which gave it.
        prompts: The question as it was asked, each time; the first is what is said of the evidence.
        reply: The answer.
        before: Seconds a question of what came before answering.
    """
    prepared = prompts[0]
    example, text = prepared.example, reply.text
    latency = {**before, **{part: getattr(reply, part) for part in ANSWERING}}
    question, evidence = example.question, example.evidence
    graph = evidence.graph
    facts = model.prompt_facts(prepared)
    stated = {edge for fact in facts for edge in fact.edges}
    is_fact = (~is_structure(graph)).tolist()
    rows = zip(
        *graph.edge_index.tolist(),
        graph.edge_type.tolist(),
        evidence.edge_score.tolist(),
        strict=True,
    )
    triples = [
        {
            "triple": [graph.node_text[head], graph.relation_text[kind], graph.node_text[tail]],
            "score": round(score, 6),
            "in_prompt": edge in stated,
        }
        for edge, (head, tail, kind, score) in enumerate(rows)
        if is_fact[edge]
    ]
    written = stated_golds(example, facts)
    record = {
        "id": question.id,
        "question": question.question,
        "prediction": text,
        "ground_truth": [*question.answers, *question.aliases],
        "answers": metrics.distinct(metrics.split_answers(text)),
        "evidence": triples,
        "golds": {
            "all": len(set(question.answers)),
            "in_graph": example.golds_in_graph,
            "retrieved": example.golds_in_evidence,
            "in_prompt": len(written),
            "within_cap": _within_cap(model, written),
        },
        "seconds": round(reply.seconds, 4),
        "latency": {stage: round(seconds, 5) for stage, seconds in latency.items()},
        "prompt_tokens": sum(model.lengths(prompts)),
        "new_tokens": reply.tokens,
    }
    if question.chunks:
        record |= _of_texts(example, facts)
    record |= {"hops": example.hops} if example.hops is not None else {}
    return record | ({"group": question.group} if question.group else {})


def _found(evidence: Evidence) -> dict[str, Any]:
    """How a head that says so found its passages; of others nothing."""
    if not evidence.found_by:
        return {}
    named = {name: list(how) for name, how in evidence.named.items()}
    return {"found_by": evidence.found_by, "named": named}


def _of_texts(example: Example, facts: Sequence[Fact]) -> dict[str, Any]:
    """What a record says of texts: those that were kept, and the supporting facts."""
    question, evidence, graph = example.question, example.evidence, example.evidence.graph
    stated = {node for fact in facts for node in fact.passages}
    signals = {name: values.tolist() for name, values in evidence.signals.items()}
    passages = [
        {
            "text": evidence.graph.node_text[node],
            "score": round(float(evidence.node_score[node]), 6),
            "in_prompt": node in stated,
        }
        | ({"signals": {k: round(v[place], 4) for k, v in signals.items()}} if signals else {})
        for place, node in enumerate(evidence.passages)
    ]
    best = example.chunks_found[: text_recall.SUPPORTING]
    said = text_recall.facts(question, best)
    read = {question.chunks[number].words for number in best}
    rows = zip(graph.edge_passage.tolist(), *graph.edge_index.tolist(), graph.edge_type.tolist(),
               strict=True)  # fmt: skip
    triples = dict.fromkeys(
        (graph.node_text[head], graph.relation_text[kind], graph.node_text[tail])
        for passage, head, tail, kind in rows
        if passage >= 0 and graph.node_text[passage] in read
    )
    of_triples: dict[str, Any] = {}
    if question.evidences is not None:
        of_triples = {
            text_metrics.TRIPLES: list(map(list, triples)),
            text_metrics.GOLD_TRIPLES: list(map(list, question.evidences)),
        }
    return of_triples | {
        "passages": passages,
        "merges": [list(merge) for merge in example.merges],
        **({"fusion": [list(d) for d in example.decisions]} if example.decisions else {}),
        **_found(evidence),
        text_metrics.PREDICTED: sorted(map(list, said)),
        text_metrics.GOLD: [list(fact) for fact in question.support],
    }


def _within_cap(model: BiSRQA, golds: list[str]) -> int:
    """How many golds, one a line as in training, can be written in ``max_new_tokens``."""
    # The same tokens as in a target: a special token spelled out in a gold stays text.
    tokens = model.generator.tokenizer(
        ["\n", *(" ".join(gold.split()) for gold in golds)],
        add_special_tokens=False,
        split_special_tokens=True,
    ).input_ids
    newline, *lengths = map(len, tokens)
    return waterfall.fitting(lengths, newline, model.generator.config.max_new_tokens)


def _score(predictions: list[dict[str, Any]]) -> dict[str, Any]:
    """The panel, its breakdowns, and where questions are lost, in all and in each class."""
    panel = metrics.full_panel(predictions) | waterfall.summary(predictions)
    # Answer counts have no waterfall: the graph and the prompt know nothing of them.
    for key in ("by_hops", "by_group"):
        for kind, part in panel.get(key, {}).items():
            of = [p for p in predictions if str(metrics.BREAKDOWNS[key](p)) == kind]
            part |= waterfall.summary(of)
    groups = panel.pop("by_group", {})
    seconds = sum(p["seconds"] for p in predictions)
    return panel | {
        "seconds": round(seconds, 3),
        "seconds_per_question": round(seconds / len(predictions), 4),
        "groups": groups,
    }


def _latency(predictions: list[dict[str, Any]]) -> dict[str, float]:
    """Seconds a question of each stage, from the words of the question to those of the answer."""
    stages = predictions[0]["latency"]
    total = {stage: sum(p["latency"][stage] for p in predictions) for stage in stages}
    return {stage: round(seconds / len(predictions), 5) for stage, seconds in total.items()}


def _speed(predictions: list[dict[str, Any]]) -> dict[str, float | None]:
    """Tokens read and written a second; nothing for what took no time of its own."""
    speed = {}
    for part, tokens in (("prefill", "prompt_tokens"), ("decode", "new_tokens")):
        seconds = sum(p["latency"][part] for p in predictions)
        rate = sum(p[tokens] for p in predictions) / seconds if seconds else None
        speed[f"{part}_tokens_per_second"] = round(rate, 1) if rate is not None else None
    return speed


def _draw(result: dict[str, Any], out: Path) -> None:
    """Draw the waterfall, unless it is there already or the results are from before there was."""
    if "waterfall" not in result or all((out / name).exists() for name in waterfall.FILES):
        return
    bars = {"all": result["waterfall"]}
    bars |= {group.replace("_", " "): of["waterfall"] for group, of in result["groups"].items()}
    for hops, of in result.get("by_hops", {}).items():
        bars[f"{hops} hop" + "s" * (hops != "1")] = of["waterfall"]
    waterfall.draw(bars, out)


def usual_folder(config: RunConfig, run_dir: Path | None) -> Path:
    """Where results go unless told otherwise: another place for every other choice of settings."""
    engine, several = config.evaluation.engine, config.evaluation.subgraphs
    name = f"eval-{config.evaluation.split}" + f"-{engine}" * (engine != "transformers")
    name += f"-{several}-subgraphs" * (several > 1)
    if run_dir is None:
        return config.run_dir / name / "untrained"
    trained_with = configs.load(run_dir / checkpoint.CONFIG)
    if config.evaluation.limit != trained_with.evaluation.limit:
        name += f"-first-{config.evaluation.limit or 'all'}"
    if (settings := _settings(config)) != _settings(trained_with):
        name += "-" + hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:6]
    return run_dir / name / "trained"


def _identity(config: RunConfig, learned: str | None, step_dir: Path | None) -> str:
    """Hash of all that the answers depend on."""
    weights = checkpoint.check(step_dir)["sha256"] if step_dir else None
    asked = [config.evaluation.split, config.evaluation.limit, data.fingerprint(config.data)]
    # Engines round differently, and a few replies differ for it.
    engine = [config.evaluation.engine] if config.evaluation.engine != "transformers" else []
    several = [config.evaluation.subgraphs] if config.evaluation.subgraphs > 1 else []
    retriever = [content] if learned and (content := provenance.content(Path(learned))) else []
    extra = [*engine, *several, *retriever]
    known = json.dumps([_settings(config), asked, weights, *extra], sort_keys=True)
    return hashlib.sha256(known.encode()).hexdigest()[:16]


def _settings(config: RunConfig) -> dict[str, Any]:
    """The settings that answers depend on, besides which questions are asked."""
    free = ("name", "output_dir", "cache_dir", "tracker", "training", "evaluation")
    return {key: value for key, value in to_dict(config).items() if key not in free}
