"""Which questions each training step takes, and how questions share a pass through a model."""

from collections.abc import Sequence

import torch

from bisrqa.config import TrainingConfig


class Batches:
    """Questions of each step: a function of the step alone, so a run can go on anywhere.

    An epoch is a seeded permutation; what does not fill a last step waits for the next epoch.

    Raises:
        ValueError: A step has too few questions for every process to have one.
    """

    def __init__(self, settings: TrainingConfig, num_questions: int, processes: int, seed: int):
        self.per_step = min(settings.batch_size, num_questions)
        if self.per_step < processes:  # they would wait for each other for ever
            raise ValueError(
                f"{processes} processes share the {self.per_step} questions of a step: use fewer, "
                f"or raise training.batch_size (there are {num_questions} training questions)"
            )
        self.per_epoch = num_questions // self.per_step
        total = settings.epochs * self.per_epoch
        self.total_steps = min(total, settings.max_steps) if settings.max_steps else total
        self._num_questions, self._seed = num_questions, seed

    def epoch(self, step: int) -> int:
        """Epoch of a step, both from 0."""
        return step // self.per_epoch

    def indices(self, step: int) -> list[int]:
        """Questions of a step, those of all processes."""
        epoch, position = divmod(step, self.per_epoch)
        order = torch.Generator().manual_seed(self._seed * 1_000_003 + epoch)
        permutation = torch.randperm(self._num_questions, generator=order)
        return permutation[position * self.per_step : (position + 1) * self.per_step].tolist()


def parts(
    lengths: Sequence[int], budget: int, *, process: int = 0, processes: int = 1
) -> list[list[int]]:
    """Share rows out, longest first: neighbours in length pass through the model together.

    Processes take rows in turn, so that each has some of every length.

    Args:
        lengths: Tokens of each row.
        budget: A part has at most so many tokens, padding included; a longer row stands alone.
        process: Whose parts.
        processes: Among how many the rows are shared.

    Returns:
        Rows of each part of that process; every row is in one part of one process.
    """
    order = sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))
    made: list[list[int]] = []
    for row in order[process::processes]:
        if not made or (len(made[-1]) + 1) * lengths[made[-1][0]] > budget:
            made.append([])
        made[-1].append(row)
    return made
