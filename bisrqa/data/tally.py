"""What readers say of rows: unusable ones, and how often something odd was met."""

from collections import Counter
from dataclasses import dataclass, field


class BadRow(ValueError):
    """A row that cannot become a question; the message names file, row and field."""


@dataclass
class Tally:
    """What a reader met: how often, and where first."""

    counts: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)

    def add(self, what: str, where: str) -> None:
        self.counts[what] += 1
        self.first.setdefault(what, where)

    def lines(self) -> list[str]:
        """One sentence a finding, most frequent first."""
        return [
            f"{what}: {count} (first: {self.first[what]})"
            for what, count in self.counts.most_common()
        ]
