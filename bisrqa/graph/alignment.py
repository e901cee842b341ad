"""Alignment of entity names: which names stand for one entity, and why.

Exact matches are a matter of the normaliser (:mod:`bisrqa.graph.texts`). Beyond them a name may be
listed as an alias, be spelled almost like a known name, or be close to one in embedding. Names
whose numbers differ (*Apollo 11*, *Apollo 13*; *Henry IV*, *Henry V*) are never one entity.
"""

import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from bisrqa.config import AlignmentConfig
from bisrqa.text import normalise

_NUMBER = re.compile(
    r"^(?=.)(?:\d+\w*|m{0,3}(?:cm|cd|d?c{0,3})(?:xc|xl|l?x{0,3})(?:ix|iv|v?i{0,3}))$"
)
PREFIX = 3
"""Names are compared in spelling only where two of their words begin with the same letters."""
CHUNK_ROWS = 4096

Embed = Callable[[Sequence[str]], Float[Tensor, "texts dim"]]


class Match(NamedTuple):
    """A known name that another is taken for."""

    known: str
    why: str


class Aligner:
    """Finds known names for unknown ones.

    Args:
        config: Thresholds and the file of aliases.
        embed: Gives unit-norm rows for names; asked only with ``config.embedding``.

    Raises:
        ValueError: ``rapidfuzz`` is not installed, or a line of the aliases is broken.
    """

    def __init__(self, config: AlignmentConfig, embed: Embed):
        self._config, self._embed = config, embed
        self.aliases = read_aliases(Path(config.aliases)) if config.aliases else ()
        if config.fuzzy is not None and find_spec("rapidfuzz") is None:
            raise ValueError("alignment.fuzzy needs rapidfuzz: pip install 'bisrqa[align]'")

    def __call__(self, names: Sequence[str], known: Sequence[str]) -> list[Match | None]:
        """For each name a known one, or an earlier one without a match; by spelling, then meaning.

        A name is never compared with one that was taken for another: nothing drifts.
        """
        found: list[Match | None] = [None] * len(names)
        for threshold, way in (
            (self._config.fuzzy, by_spelling),
            (self._config.embedding, partial(by_embedding, self._embed)),
        ):
            left = [number for number, match in enumerate(found) if match is None]
            if threshold is not None and left:
                some = way([names[number] for number in left], known, threshold)
                for number, match in zip(left, some, strict=True):
                    found[number] = match
        return found


def numbers(name: str) -> tuple[str, ...]:
    """The words of a name that count or date something, Arabic or Roman."""
    return tuple(word for word in normalise(name).split() if _NUMBER.match(word))


def by_spelling(names: Sequence[str], known: Sequence[str], threshold: float) -> list[Match | None]:
    """Whose Levenshtein ratio is highest, if it is at least ``threshold``.

    Only names are compared that have the beginning of a word in common, so that the work does not
    grow with all pairs.
    """
    from rapidfuzz import fuzz, process

    targets: list[str] = []
    begun: dict[str, list[int]] = {}

    def add(name: str) -> None:
        for start in dict.fromkeys(word[:PREFIX] for word in normalise(name).split()):
            begun.setdefault(start, []).append(len(targets))
        targets.append(name)

    for name in known:
        add(name)
    found: list[Match | None] = []
    for name in names:
        asked, count = normalise(name), numbers(name)
        near = {n for word in asked.split() for n in begun.get(word[:PREFIX], ())}
        some = [targets[n] for n in sorted(near) if numbers(targets[n]) == count]
        best = process.extractOne(
            asked, some, scorer=fuzz.ratio, processor=normalise, score_cutoff=100 * threshold
        )
        found.append(Match(best[0], f"spelling {best[1] / 100:.3f}") if best else None)
        if best is None:
            add(name)
    return found


def by_embedding(
    embed: Embed, names: Sequence[str], known: Sequence[str], threshold: float
) -> list[Match | None]:
    """Whose cosine is highest, if it is at least ``threshold``; compares all pairs."""
    targets = [*known, *names]
    x = embed(targets).float()
    counts = [numbers(name) for name in targets]
    open_to = torch.zeros(len(targets), dtype=torch.bool)
    open_to[: len(known)] = True
    found: list[Match | None] = []
    for start in range(len(known), len(targets), CHUNK_ROWS):
        cosine = x[start : start + CHUNK_ROWS] @ x.T
        for number, row in enumerate(cosine, start):
            value, best = row.masked_fill(~open_to, -1).max(0)
            same = float(value) >= threshold and counts[number] == counts[int(best)]
            found.append(Match(targets[int(best)], f"embedding {value:.3f}") if same else None)
            open_to[number] = not same
    return found


def read_aliases(file: Path) -> tuple[tuple[str, str], ...]:
    """Pairs of an alias and a name: of a ``.jsonl`` file, or tab-separated lines.

    Raises:
        ValueError: No such file, or a line that is no pair; names it.
    """
    try:
        lines = file.read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"alignment.aliases: {file}: {error}") from error
    pairs = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"alignment.aliases: {file}:{number}"
        try:
            parts = json.loads(line) if file.suffix == ".jsonl" else line.split("\t")
        except json.JSONDecodeError as error:
            raise ValueError(f"{where}: broken JSON: {error}") from error
        if not (
            isinstance(parts, list)
            and len(parts) == 2
            and all(isinstance(part, str) and part.strip() for part in parts)
        ):
            raise ValueError(f"{where}: expected an alias and a name, got {line[:80]!r}")
        pairs.append((parts[0].strip(), parts[1].strip()))
    return tuple(pairs)
