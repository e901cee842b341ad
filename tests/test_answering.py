"""Batches of answers: what their budget counts, and what is said when it was too large."""

import pytest
import tiny

from bisrqa.answering import answer
from bisrqa.model import BiSRQA


@pytest.mark.parametrize("beams", [1, 3])
def test_a_batch_keeps_to_its_tokens_prompts_of_all_beams_included(
    beams: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny.config(generator={"num_beams": beams})
    model = tiny.model(config)
    questions = model.prepare(tiny.examples())
    longest = max(model.lengths(questions)) + config.generator.max_new_tokens
    budget, sizes, generate = 6 * longest, [], BiSRQA.generate

    def recording(self, batch):
        tokens = max(self.lengths(batch)) + config.generator.max_new_tokens
        sizes.append(len(batch))
        assert len(batch) * tokens * beams <= budget
        return generate(self, batch)

    monkeypatch.setattr(BiSRQA, "generate", recording)
    replies = [reply for batch in answer(model, questions, batch_tokens=budget) for reply in batch]
    assert sorted(reply.place for reply in replies) == list(range(len(questions)))
    assert max(sizes) >= 6 // beams


@pytest.mark.parametrize(
    ("budget", "advice"),
    [
        (10**6, r"8 questions of at most \d+ tokens: lower evaluation\.batch_tokens \(now 1000000"),
        (1, r"1 questions of at most \d+ tokens: lower prompt\.max_prompt_tokens or generator"),
    ],
)
def test_a_batch_that_does_not_fit_says_what_to_change(
    budget: int, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny.model(tiny.config())

    def full(*_):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate")

    monkeypatch.setattr(BiSRQA, "generate", full)
    with pytest.raises(MemoryError, match=f"no memory left to answer {advice}"):
        list(answer(model, model.prepare(tiny.examples()), batch_tokens=budget))
