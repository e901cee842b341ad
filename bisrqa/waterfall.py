"""Where questions are lost on their way from the graph to the answer; as counts and as a picture.

A gold must be in the question's graph, be retrieved, find room in the prompt, and fit into the
tokens that the model may write. Each question is in exactly one class: it was answered, or it
belongs to the first stage that lost its last gold.
"""

import io
import logging
import textwrap
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bisrqa import metrics
from bisrqa.files import write_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

logger = logging.getLogger(__name__)

STAGES = ("in_graph", "retrieved", "in_prompt", "within_cap")
"""Of a record's ``golds``, in order; each counts some of the golds of the one before."""

CLASSES = {
    "answered": "answered",
    "answered_from_memory": "answered, no gold in the prompt",
    "answered_wrong": "wrong, gold in the prompt",
    "over_the_cap": "gold too long to write",
    "cut_from_prompt": "gold cut from the prompt",
    "not_retrieved": "gold not retrieved",
    "not_in_graph": "gold not in the graph",
}
"""How the picture calls each class, in its order: from answered to lost earliest."""

COLOURS = ("#0072b2", "#56b4e9", "#d55e00", "#e69f00", "#f0e442", "#cc79a7", "#9a9a9a")
"""Okabe and Ito's, which colour-blind readers tell apart; one for each class."""

LABEL_WIDTH = 28
FILES = ("waterfall.png", "waterfall.svg")
EXTRA = "no picture without matplotlib: pip install 'bisrqa[plot]'"


def class_of(record: Mapping[str, Any]) -> str:
    """The one class that a question is in.

    Args:
        record: As ``evaluate`` writes it. Answered means that a line equals a gold (strict hit),
            whichever of the golds was in the prompt.
    """
    golds = record["golds"]
    if metrics.scores_of(record, ["strict"])["strict.hit"]:
        return "answered" if golds["in_prompt"] else "answered_from_memory"
    lost = ("not_in_graph", "not_retrieved", "cut_from_prompt", "over_the_cap")
    for name, stage in zip(lost, STAGES, strict=True):
        if not _left(golds, stage):
            return name
    return "answered_wrong"


def tally(classes: Iterable[str]) -> dict[str, int]:
    """How many questions are in each class; all classes are named, and they sum to all."""
    counts = dict.fromkeys(CLASSES, 0)
    for kind in classes:
        counts[kind] += 1
    return counts


def summary(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The waterfall and the ceilings of some questions, as ``metrics.json`` has them.

    Returns:
        ``golds.STAGE``: percentage of questions with any gold at that stage. ``ceiling.STAGE``:
        mean percentage of a question's golds that are still there, which no recall can exceed that
        reads the answers off the graph. ``waterfall``: questions in each class.
    """
    found, ceiling = {}, {}
    for stage in STAGES:
        left = [_left(record["golds"], stage) for record in records]
        share = [n / record["golds"]["all"] for n, record in zip(left, records, strict=True)]
        found[f"golds.{stage}"] = round(100 * sum(n > 0 for n in left) / len(records), 2)
        ceiling[f"ceiling.{stage}"] = round(100 * sum(share) / len(records), 2)
    return found | ceiling | {"waterfall": tally(map(class_of, records))}


def fitting(lengths: Sequence[int], newline: int, cap: int) -> int:
    """How many answers can be written, one a line, in ``cap`` tokens.

    Taken in order; one that is too long for what is left is passed over, so any that fits alone
    counts. The token that ends the reply needs no room: a reply that is cut there is whole.

    Args:
        lengths: Tokens of each answer.
        newline: Tokens between two.
        cap: Tokens in all.
    """
    written, left = 0, cap
    for length in lengths:
        cost = length + (newline if written else 0)
        if cost <= left:
            written += 1
            left -= cost
    return written


def figure(bars: Mapping[str, Mapping[str, int]]) -> "Figure":
    """Stacked bars, one for each set of questions or each system, over its share of questions.

    Args:
        bars: By label, what :func:`tally` gave. Bars without questions are left out.

    Raises:
        ImportError: Without matplotlib.
    """
    # Figure alone, without pyplot: no window system, and nothing global is touched.
    from matplotlib.figure import Figure

    bars = {label: counts for label, counts in bars.items() if sum(counts.values())}
    labels = [
        f"{textwrap.fill(label, LABEL_WIDTH)}\nn = {sum(counts.values())}"
        for label, counts in bars.items()
    ]
    lines = sum(label.count("\n") + 1 for label in labels)
    made = Figure(figsize=(10, 1.5 + 0.28 * lines), layout="constrained")
    axes = made.subplots()
    starts = [0.0] * len(bars)
    for kind, colour in zip(CLASSES, COLOURS, strict=True):
        number = [counts[kind] for counts in bars.values()]
        width = [100 * counts[kind] / sum(counts.values()) for counts in bars.values()]
        if not any(number):
            continue
        drawn = axes.barh(
            range(len(bars)),
            width,
            left=starts,
            color=colour,
            edgecolor="white",
            label=CLASSES[kind],
        )
        # A narrow piece has no room for its number; the JSON beside the picture has it.
        shown = [
            str(n) if w >= 1.6 * len(str(n)) else "" for n, w in zip(number, width, strict=True)
        ]
        axes.bar_label(
            drawn, shown, label_type="center", color="white" if kind == "answered" else "black"
        )
        starts = [start + w for start, w in zip(starts, width, strict=True)]
    axes.set_yticks(range(len(bars)), labels)
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel("% of questions (numbers: questions)")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    made.legend(loc="outside upper center", ncols=4, frameon=False, handlelength=1.2)
    for text in made.findobj(lambda artist: hasattr(artist, "set_parse_math")):
        text.set_parse_math(False)  # pyright: ignore[reportAttributeAccessIssue]
    return made


def save(drawn: "Figure", path: Path) -> None:
    """Write the picture in one step, as PNG or SVG by the file's name."""
    from matplotlib import rc_context

    kind = path.suffix.removeprefix(".").lower()
    if kind not in ("png", "svg"):
        raise ValueError(f"{path}: pictures are .png or .svg")
    stream = io.BytesIO()
    # Text stays text in an SVG, so that its reader has letters that matplotlib's font lacks; in
    # a PNG such a letter is a box.
    with (
        rc_context({"svg.hashsalt": "bisrqa", "svg.fonttype": "none"}),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        undated = {"Date": None} if kind == "svg" else None
        drawn.savefig(stream, format=kind, dpi=100, metadata=undated)
    write_bytes(path, stream.getvalue())


def draw(bars: Mapping[str, Mapping[str, int]], folder: Path) -> None:
    """Write ``waterfall.png`` and ``.svg``; without matplotlib a line in the log says so."""
    try:
        drawn = figure(bars)
    except ImportError:
        logger.info(EXTRA)
        return
    for name in FILES:
        save(drawn, folder / name)


def _left(golds: Mapping[str, int], stage: str) -> int:
    """Golds left at a stage; files from before ``within_cap`` count as having no cap."""
    return golds.get(stage, golds["in_prompt"])
