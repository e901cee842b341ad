"""MAIF's own lesson: to attend to the answers, before there is a language model to please.

The language model's loss says little of which entity matters: the triples already say it in words.
The answers say it directly, and MAIF is small: a pass takes seconds.
"""

import logging
import random
from collections.abc import Sequence

import torch
from tqdm import tqdm

from bisrqa.config import RunConfig
from bisrqa.model import BiSRQA, Prepared

logger = logging.getLogger(__name__)

BATCH = 16


def run(
    model: BiSRQA, train: Sequence[Prepared], config: RunConfig, *, progress: bool = False
) -> list[float]:
    """Train the encoder on :meth:`BiSRQA.attention_loss` for ``training.encoder_epochs`` passes.

    Args:
        model: Its encoder is changed, at ``training.encoder_learning_rate``.
        train: Questions; those without a kept gold teach nothing.
        config: ``training`` and ``seed`` are read.
        progress: Show a progress bar.

    Returns:
        Mean loss of each pass.
    """
    assert model.encoder is not None
    settings = config.training
    parameters = [p for p in model.encoder.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(
        parameters, settings.encoder_learning_rate, weight_decay=settings.weight_decay
    )
    taught = [n for n, p in enumerate(train) if p.example.golds_in_evidence]
    rng = random.Random(f"{config.seed}/encoder")
    model.train()
    losses = []
    for epoch in range(1, settings.encoder_epochs + 1):
        order = rng.sample(range(len(taught)), len(taught))
        total = 0.0
        starts = tqdm(
            range(0, len(order), BATCH), desc=f"encoder, pass {epoch}", disable=not progress
        )
        for start in starts:
            batch = [train[taught[i]] for i in order[start : start + BATCH]]
            loss = model.attention_loss(batch) / len(batch)
            if not torch.isfinite(loss):
                raise FloatingPointError(f"the encoder's loss is {loss.item()} in pass {epoch}")
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, settings.clip)
            optimizer.step()
            total += loss.item() * len(batch)
        losses.append(total / max(len(taught), 1))
        logger.info("encoder, pass %d: attention loss %.3f", epoch, losses[-1])
    optimizer.zero_grad()
    return losses
