"""Which questions each training step takes."""

import torch

from bisrqa.config import TrainingConfig


class Batches:
    """Questions of each step: a function of the step alone, so a run can go on anywhere.

    An epoch is a seeded permutation; what does not fill a last step waits for the next epoch.
    """

    def __init__(self, settings: TrainingConfig, num_questions: int, processes: int, seed: int):
        self.micro = min(settings.batch_size, num_questions)
        self.per_step = settings.batch_size * settings.accumulation * processes
        if num_questions < self.per_step:
            if processes > 1:  # they would wait for each other for ever
                raise ValueError(
                    f"{num_questions} training questions do not fill one step of "
                    f"{self.per_step} over {processes} processes"
                )
            self.per_step = num_questions
        self.per_epoch = num_questions // self.per_step
        total = settings.epochs * self.per_epoch
        self.total_steps = min(total, settings.max_steps) if settings.max_steps else total
        self._num_questions, self._seed = num_questions, seed

    def epoch(self, step: int) -> int:
        """Epoch of a step, both from 0."""
        return step // self.per_epoch

    def indices(self, step: int) -> list[list[int]]:
        """Micro-batches of a step; processes take them in turn."""
        epoch, position = divmod(step, self.per_epoch)
        order = torch.Generator().manual_seed(self._seed * 1_000_003 + epoch)
        permutation = torch.randperm(self._num_questions, generator=order)
        rows = permutation[position * self.per_step : (position + 1) * self.per_step]
        return [part.tolist() for part in rows.split(self.micro)]
