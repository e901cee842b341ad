"""Many runs and one table: arms by name, a grid of settings, seeds."""

import dataclasses
import itertools
import json
import logging
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from bisrqa import config as configs
from bisrqa import evaluation, report, training, waterfall
from bisrqa.config import RunConfig
from bisrqa.files import write_text

logger = logging.getLogger(__name__)

RESULTS, TABLE = "results.json", "table.md"
METRICS = ("strict.hit", "strict.f1", "rog.hit", "rog.f1", "golds.in_prompt")


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One way of doing it."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Dotted settings that differ from the sweep's."""
    seeds: tuple[int, ...] | None = None
    """None for the sweep's."""
    untrained: bool = False
    """Ask the language model as it is, without a soft prompt."""
    of: str | None = None
    """Do not train, but ask the runs of that arm with these settings."""


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """What is run."""

    name: str
    config: str
    """File that all runs start from."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Dotted settings of all runs."""
    arms: tuple[Arm, ...] = (Arm(name="run"),)
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Dotted settings and the values that each takes; every combination, for every arm."""
    seeds: tuple[int, ...] = (0,)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run of a sweep."""

    arm: Arm
    point: Mapping[str, Any]
    """The grid's values."""
    seed: int
    config: RunConfig

    @property
    def label(self) -> str:
        values = [f"{key.rsplit('.', 1)[-1]}={value}" for key, value in self.point.items()]
        return ", ".join([self.arm.name, *values])


def read(file: Path) -> Sweep:
    """Read a sweep from YAML.

    It has ``config`` and any of ``name`` (by default ``sweep_`` and the file's), ``settings``,
    ``grid``, ``seeds`` and ``arms``: names and their settings, among which ``seeds``,
    ``untrained`` and ``of`` are words of the sweep's own.

    Raises:
        ValueError: Not such a file; names what is wrong.
    """
    try:
        found = yaml.safe_load(file.read_text("utf8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"{file}: not a readable sweep: {error}") from error
    known = [f.name for f in dataclasses.fields(Sweep)]
    if not isinstance(found, dict) or "config" not in found:
        raise ValueError(f"{file}: a sweep is a mapping that names a config")
    if unknown := set(found) - set(known):
        raise ValueError(
            f"{file}: unknown key {min(unknown)!r} (known: {', '.join(sorted(known))})"
        )
    for key in ("settings", "grid", "arms"):
        if not isinstance(found.get(key, {}), dict):
            raise ValueError(f"{file}: {key} must be a mapping")
    for key, values in found.get("grid", {}).items():
        if not isinstance(values, list):
            raise ValueError(f"{file}: grid: {key} must have a list of values, got {values!r}")
    arms = []
    for name, given in found.pop("arms", {"run": {}}).items():
        if not isinstance(given, dict | None):
            raise ValueError(f"{file}: arm {name!r} must be a mapping of settings, got {given!r}")
        given = dict(given or {})
        own = {k: given.pop(k) for k in ("seeds", "untrained", "of") if k in given}
        if "seeds" in own:
            own["seeds"] = _seeds(own["seeds"], file)
        arms.append(Arm(name=str(name), settings=given, **own))
    if "seeds" in found:
        found["seeds"] = _seeds(found["seeds"], file)
    return Sweep(**{"name": f"sweep_{file.stem}", **found, "arms": tuple(arms)})


def _seeds(value: Any, file: Path) -> tuple[int, ...]:
    if not isinstance(value, list) or not value or not all(type(seed) is int for seed in value):
        raise ValueError(f"{file}: seeds must be a list of whole numbers, got {value!r}")
    return tuple(value)


def cells(sweep: Sweep) -> list[Cell]:
    """Every run, checked before any of them starts.

    Raises:
        ValueError: A setting that does not exist or cannot be, an arm ``of`` an unknown one, two
            arms that would share a folder, or nothing to run.
    """
    for key, values in sweep.grid.items():
        if not values:
            raise ValueError(f"grid: {key} must have a list of values, got {values!r}")
    if not sweep.seeds or not sweep.arms:
        raise ValueError(f"sweep {sweep.name!r} has no {'arms' if sweep.seeds else 'seeds'}")
    made, slugs = [], {}
    names = {arm.name: arm for arm in sweep.arms}
    for arm in sweep.arms:
        if (other := slugs.setdefault(_slug(arm.name), arm.name)) != arm.name:
            raise ValueError(f"arms {other!r} and {arm.name!r} would share a folder: rename one")
        trained = arm
        if arm.of is not None:
            if arm.of not in names or names[arm.of].of is not None or names[arm.of].untrained:
                raise ValueError(f"arm {arm.name!r}: of {arm.of!r}, which is no trained arm")
            trained = names[arm.of]
        for seed in arm.seeds or trained.seeds or sweep.seeds:
            for values in itertools.product(*sweep.grid.values()):
                point = dict(zip(sweep.grid, values, strict=True))
                own = arm.settings if arm is trained else {**trained.settings, **arm.settings}
                name = _slug(Cell(arm=trained, point=point, seed=seed, config=RunConfig()).label)
                words = {**sweep.settings, **own, **point, "seed": seed}
                words |= {"name": f"{name}-seed{seed}", "evaluation.after_training": "none"}
                config = configs.load(
                    sweep.config, [f"--{key}={_word(value)}" for key, value in words.items()]
                )
                config = configs.untrained(config) if arm.untrained else config
                folder = str(Path(config.output_dir) / sweep.name)
                tracker = dataclasses.replace(config.tracker, group=sweep.name)
                config = dataclasses.replace(config, output_dir=folder, tracker=tracker)
                made.append(Cell(arm=arm, point=point, seed=seed, config=config))
    return sorted(made, key=lambda cell: cell.seed)  # all arms once before any of them twice


def run(sweep: Sweep, *, progress: bool = False) -> dict[str, Any]:
    """Run what is not there yet; writes ``results.json``, ``table.md`` and a plot for each value.

    A run whose data, settings or loss are bad is written down as failed, and the others go on.

    Returns:
        What ``results.json`` holds.
    """
    todo = cells(sweep)
    folder = Path(todo[0].config.output_dir)
    rows: list[dict[str, Any]] = []
    for number, cell in enumerate(todo, 1):
        logger.info("[%d/%d] %s, seed %d", number, len(todo), cell.label, cell.seed)
        row: dict[str, Any] = {"arm": cell.arm.name, "point": dict(cell.point), "seed": cell.seed}
        try:
            row |= {"label": cell.label, "scores": _run(cell, todo, progress)}
        except (ValueError, FloatingPointError) as error:
            logger.error("%s, seed %d failed: %s", cell.label, cell.seed, error)
            row |= {"label": cell.label, "failed": str(error)}
        rows.append(row)
        found = {"sweep": sweep.name, "runs": rows}
        write_text(folder / RESULTS, json.dumps(found, indent=1) + "\n")
        write_text(folder / TABLE, table(rows) + "\n")
    for key in (key for key, values in sweep.grid.items() if len(values) > 1):
        plot(rows, key, folder / f"{_slug(key)}.png")
    return {"sweep": sweep.name, "runs": rows}


def _run(cell: Cell, todo: Sequence[Cell], progress: bool) -> dict[str, Any]:
    config = cell.config
    if cell.arm.untrained:
        return evaluation.evaluate(
            config, evaluation.usual_folder(config, None), run_dir=None, progress=progress
        )
    if cell.arm.of is None:
        training.run(config)
    elif not any(
        other.arm.name == cell.arm.of and other.config.run_dir == config.run_dir for other in todo
    ):
        raise ValueError(f"arm {cell.arm.of!r} has no run with seed {cell.seed}")
    out = evaluation.usual_folder(config, config.run_dir)
    return evaluation.evaluate(config, out, run_dir=config.run_dir, progress=progress)


def table(rows: Sequence[Mapping[str, Any]], metrics: Sequence[str] = METRICS) -> str:
    """Mean and standard deviation over seeds, a line for each arm and point of the grid."""
    lines = [["", "seeds", "n", *metrics, "s/question"]]
    failed = []
    for label in dict.fromkeys(row["label"] for row in rows):
        listed = [row for row in rows if row["label"] == label]
        failed += [f"{label}, seed {r['seed']}: {r['failed']}" for r in listed if "failed" in r]
        done = [row["scores"] for row in listed if "scores" in row]
        if not done:
            continue
        cells_ = [spread([scores[metric] for scores in done]) for metric in metrics]
        seconds = spread([scores["seconds_per_question"] for scores in done], digits=2)
        counts = "/".join(dict.fromkeys(str(scores["n"]) for scores in done))
        lines.append([label, str(len(done)), counts, *cells_, seconds])
    text = report.grid(lines, texts=1)
    return "\n".join([text, *(f"\nfailed: {line}" for line in failed)])


def spread(values: Sequence[float], digits: int = 1) -> str:
    """``mean ± sd``; the mean alone of a single value."""
    mean = f"{statistics.fmean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.{digits}f}"


def plot(rows: Sequence[Mapping[str, Any]], key: str, file: Path, metric: str = METRICS[1]) -> None:
    """Draw a score over the values of one setting, a line for each arm; PNG."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        logger.warning("no plot of %s: pip install 'bisrqa[plot]'", key)
        return
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    done = [row for row in rows if "scores" in row]
    values = list(dict.fromkeys(str(row["point"][key]) for row in done))
    for arm in dict.fromkeys(row["arm"] for row in done):
        at = [
            [
                row["scores"][metric]
                for row in done
                if row["arm"] == arm and str(row["point"][key]) == value
            ]
            for value in values
        ]
        places = [i for i, scores in enumerate(at) if scores]
        means = [statistics.fmean(at[i]) for i in places]
        errors = [statistics.stdev(at[i]) if len(at[i]) > 1 else 0.0 for i in places]
        axes.errorbar(places, means, errors, marker="o", capsize=3, label=arm)
    axes.set_xticks(range(len(values)), values)
    axes.set_xlabel(key)
    axes.set_ylabel(f"{metric}, mean and standard deviation")
    axes.legend()
    waterfall.save(figure, file)


def _slug(text: str) -> str:
    return re.sub(r"[^\w.=-]+", "_", text).strip("_")


def _word(value: Any) -> str:
    """A value as a command line has it."""
    return json.dumps(value) if not isinstance(value, str) else value
