"""Replies that can only be given names, one a line: which tokens may come next.

Names are told apart by their tokens, each tokenised by itself as in a training target, so that a
reply is tokenised as what was taught.
"""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from bisrqa.text import normalise


class _Node:
    """A place in the tree of all lines: so many tokens of a name and of the line break behind."""

    __slots__ = ("ends", "following", "names", "newline")

    def __init__(self) -> None:
        self.following: dict[int, _Node] = {}
        self.names: list[tuple[str, int]] = []
        """Names that go on from here, or end here: what each is compared by, and its length."""
        self.ends: str | None = None
        """The name that is whole here."""
        self.newline: tuple[str, int] | None = None
        """In the line break behind a name: that name, and how many tokens of the break are left."""


class Lines:
    """All replies to one question: distinct names, one a line, none of them cut.

    Args:
        names: Tokens of each; at least one must fit. Those of one normalised form are one answer.
        newline: Tokens between two.
        stop_ids: Tokens that may end a reply.
        longest: Most tokens of a reply; one that fills it need not be ended.
    """

    def __init__(
        self,
        names: Mapping[str, Sequence[int]],
        newline: Sequence[int],
        stop_ids: Sequence[int],
        longest: int,
    ):
        self._stop_ids, self._longest, self._root = list(stop_ids), longest, _Node()
        for name, ids in names.items():
            if 0 < len(ids) <= longest:
                self._add(normalise(name) or name, ids, newline)
        if not self._root.names:
            raise ValueError(f"none of {len(names)} names fits into {longest} tokens")

    def _add(self, name: str, ids: Sequence[int], newline: Sequence[int]) -> None:
        node = self._root
        node.names.append((name, len(ids)))
        for token in ids:
            node = node.following.setdefault(token, _Node())
            node.names.append((name, len(ids)))
        node.ends = node.ends or name
        for place, token in enumerate(newline, 1):
            node = node.following.setdefault(token, _Node())
            node.newline = node.newline or (name, len(newline) - place)

    def after(self, written: Sequence[int]) -> list[int]:
        """Tokens that may come next; those that end a reply behind what is no part of one."""
        node, depth, used = self._root, 0, set[str]()
        for token in written:
            following = node.following.get(token)
            if following is None:
                return self._stop_ids
            node, depth = following, depth + 1
            if node.newline is not None and node.newline[1] == 0:
                used.add(node.newline[0])
                node, depth = self._root, 0
        left = self._longest - len(written)
        found = [
            token
            for token, child in node.following.items()
            if _any_fits(child.names, used, left + depth)
            or (
                child.newline is not None
                and child.newline[0] not in used
                and _any_fits(
                    self._root.names, used | {child.newline[0]}, left - 1 - child.newline[1]
                )
            )
        ]
        return found + self._stop_ids * (node.ends is not None and node.ends not in used)


def _any_fits(names: Sequence[tuple[str, int]], used: set[str], room: int) -> bool:
    return any(length <= room and name not in used for name, length in names)


def narrow(
    logits: Float[Tensor, "rows vocab"],
    written: Sequence[Sequence[int]],
    lines: Sequence[Lines | None],
) -> Float[Tensor, "rows vocab"]:
    """Minus infinity for all tokens that may not come next.

    Args:
        logits: Of the next token.
        written: What each row has said.
        lines: What each row may say; None is anything.
    """
    kept = torch.full_like(logits, -torch.inf)
    places: list[tuple[int, int]] = []
    for row, (ids, allowed) in enumerate(zip(written, lines, strict=True)):
        if allowed is None:
            kept[row] = logits[row]
        else:
            places += [(row, token) for token in allowed.after(ids)]
    at = torch.tensor(places, dtype=torch.long, device=logits.device).reshape(-1, 2).unbind(1)
    kept[at] = logits[at]
    return kept
