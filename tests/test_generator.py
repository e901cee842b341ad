import copy
from pathlib import Path

import pytest
import tiny
import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from bisrqa import packing
from bisrqa.config import GeneratorConfig
from bisrqa.generator import Generator, _attention, check_tensors, fingerprint, load, positions
from bisrqa.linear import FrozenLinear
from bisrqa.prompt import IGNORE

PAD = 256


def gpt2() -> GPT2LMHeadModel:
    """Unlike a Llama, it learns absolute positions: a shifted prompt gives other logits."""
    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=259, n_positions=64, n_embd=32, n_layer=2, n_head=2, initializer_range=0.2,
            bos_token_id=None, eos_token_id=PAD, pad_token_id=PAD,
        )
    )  # fmt: skip


LLMS = {"llama": tiny.llm, "gpt2": gpt2}


def build(llm: PreTrainedModel | None = None, *, tuned: bool = True, **settings) -> Generator:
    settings = {"lora_rank": 4, "lora_dropout": 0.0, "max_new_tokens": 12, **settings}
    config = GeneratorConfig(**settings)
    return Generator(llm or tiny.llm(), tiny.tokenizer(), config, tuned=tuned).eval()


def batch() -> tuple[Tensor, Tensor, Tensor, list[tuple[list[int], list[int]]]]:
    """Left-padded ids, mask and labels of three prompts with targets, and these themselves."""
    encode = tiny.tokenizer().encode
    rows = [
        (encode(prompt), encode(target))
        for prompt, target in (("who is it?", "Ada"), ("why", "because"), ("where to now", "x"))
    ]
    width = max(len(p) + len(t) for p, t in rows)
    ids, mask, labels = [], [], []
    for prompt, target in rows:
        pad = width - len(prompt) - len(target)
        ids.append([PAD] * pad + prompt + target)
        mask.append([0] * pad + [1] * (width - pad))
        labels.append([IGNORE] * (width - len(target)) + target)
    return torch.tensor(ids), torch.tensor(mask), torch.tensor(labels), rows


def test_positions_are_counted_from_the_first_token_that_is_not_padding() -> None:
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    assert positions(mask).tolist() == [[0, 0, 0, 1, 2], [0, 1, 2, 3, 4]]


# Loss


@pytest.mark.parametrize("kind", LLMS)
def test_the_loss_is_that_of_all_logits_and_so_are_its_gradients(kind: str) -> None:
    ids, mask, labels, _ = batch()
    generator = build(LLMS[kind](), mode="full")
    ours = generator.loss(generator.embed(ids), mask, labels)
    ours.backward()
    found = {n: p.grad.clone() for n, p in generator.llm.named_parameters()}

    generator.zero_grad()
    logits = generator.llm(
        input_ids=ids, attention_mask=mask, position_ids=positions(mask)
    ).logits.log_softmax(-1)
    plain = torch.zeros(())
    for row, column in (labels != IGNORE).nonzero().tolist():
        plain = plain - logits[row, column - 1, labels[row, column]]
    plain.backward()
    torch.testing.assert_close(ours, plain)
    for name, weight in generator.llm.named_parameters():
        torch.testing.assert_close(found[name], weight.grad, rtol=1e-4, atol=1e-4, msg=name)


@pytest.mark.parametrize("kind", LLMS)
def test_the_loss_of_a_batch_is_the_sum_of_the_losses_one_by_one(kind: str) -> None:
    ids, mask, labels, rows = batch()
    generator = build(LLMS[kind](), mode="frozen")
    alone = 0.0
    for prompt, target in rows:
        row = torch.tensor([prompt + target])
        label = torch.tensor([[IGNORE] * len(prompt) + target])
        embeds = generator.embed(row)
        alone += generator.loss(embeds, torch.ones_like(row), label).item()
    assert generator.loss(generator.embed(ids), mask, labels).item() == pytest.approx(alone)
    noisy = generator.embed(ids) + 5.0 * (mask == 0)[..., None]  # padding is never read
    assert generator.loss(noisy, mask, labels).item() == pytest.approx(alone)


def test_fewer_activations_give_the_same_gradients() -> None:
    ids, mask, labels, _ = batch()
    gradients = []
    for checkpointed in (False, True):
        generator = build(mode="lora").train()
        if checkpointed:
            generator.checkpoint_activations()
        generator.loss(generator.embed(ids), mask, labels).backward()
        gradients.append({n: w.grad for n, w in generator.named_parameters() if w.requires_grad})
    torch.testing.assert_close(gradients[0], gradients[1])


def test_only_the_logits_of_answers_are_made() -> None:
    ids, mask, labels, rows = batch()
    generator, shapes = build(mode="frozen"), []
    generator.llm.lm_head.register_forward_hook(lambda *args: shapes.append(args[2].shape))
    generator.loss(generator.embed(ids), mask, labels)
    assert shapes == [(1, sum(len(target) for _, target in rows), 259)]
    assert not generator.llm.lm_head._forward_pre_hooks


# Replies


def ask(generator: Generator, prompts: list[list[int]], stop: list[int]) -> list[str]:
    width = max(map(len, prompts))
    ids = torch.tensor([[PAD] * (width - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    return generator.generate(generator.embed(ids), mask, stop).texts


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("kind", LLMS)
def test_replies_in_a_batch_are_those_given_one_by_one(kind: str, beams: int) -> None:
    generator = build(LLMS[kind](), mode="frozen", num_beams=beams)
    prompts = [prompt for prompt, _ in batch()[3]]
    together = ask(generator, prompts, [PAD])
    assert together == [ask(generator, [prompt], [PAD])[0] for prompt in prompts]
    assert len(set(together)) == len(prompts)


def test_beams_look_further_than_greedy() -> None:
    prompts = [prompt for prompt, _ in batch()[3]]
    one, three = (ask(build(mode="frozen", num_beams=n), prompts, [PAD]) for n in (1, 3))
    assert one != three


def greedy(generator: Generator, prompt: list[int], steps: int) -> list[int]:
    ids = list(prompt)
    for _ in range(steps):
        ids.append(int(generator.llm(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


def test_a_reply_is_greedy_ends_at_any_stop_token_and_at_its_longest() -> None:
    generator, decode = build(mode="frozen"), tiny.tokenizer().decode
    prompt = batch()[3][0][0]
    ids = greedy(generator, prompt, 12)
    assert len(set(ids[:6])) > 3  # else it could stop anywhere
    free = [PAD - 1 if PAD - 1 not in ids else PAD]
    assert ask(generator, [prompt], free) == [decode(ids, skip_special_tokens=True).strip()]
    for stop in (ids[4], ids[2]):
        end = ids.index(stop) + 1
        expected = decode(ids[:end], skip_special_tokens=True).strip()
        assert ask(generator, [prompt], [*free, stop]) == [expected]


def test_sampling_settings_that_come_with_a_model_do_not_change_replies() -> None:
    prompts = [prompt for prompt, _ in batch()[3]]
    plain = ask(build(mode="frozen"), prompts, [PAD])
    llm = tiny.llm()
    settings = {"do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20}
    settings |= {"repetition_penalty": 9.0, "no_repeat_ngram_size": 1, "max_length": 3}
    for name, value in settings.items():
        setattr(llm.generation_config, name, value)
    assert ask(build(llm, mode="frozen"), prompts, [PAD]) == plain


# Tuning


def trained(generator: Generator) -> set[str]:
    return {name for name, weight in generator.named_parameters() if weight.requires_grad}


def test_each_mode_trains_its_own_weights() -> None:
    assert trained(build(mode="frozen")) == set()
    full = build(mode="full")
    assert trained(full) == {name for name, _ in full.named_parameters()}
    lora = build(mode="lora", lora_targets=("q_proj", "down_proj"))
    assert len(trained(lora)) == 2 * 2 * 2  # two layers, two targets, A and B
    assert {name.split(".")[-4] for name in trained(lora)} == {"q_proj", "down_proj"}
    assert {name.split(".")[-3] for name in trained(lora)} == {"lora_A", "lora_B"}
    for mode in ("lora", "full", "frozen"):
        untuned = build(mode=mode, tuned=False)
        assert trained(untuned) == set()
        assert untuned.llm.state_dict().keys() == tiny.llm().state_dict().keys()


def test_adapters_start_without_effect_and_train_in_float32_on_a_bfloat16_model() -> None:
    ids, mask, labels, _ = batch()
    losses = [
        generator.loss(generator.embed(ids), mask, labels).item()
        for generator in (build(mode="lora"), build(mode="frozen"))
    ]
    assert losses[0] == losses[1]
    generator = build(tiny.llm().to(torch.bfloat16), mode="lora")
    kinds = {w.requires_grad: w.dtype for w in generator.llm.parameters()}
    assert kinds == {False: torch.bfloat16, True: torch.float32}
    loss = generator.loss(generator.embed(ids), mask, labels)
    loss.backward()
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(losses[0], rel=0.02)


def test_an_unknown_adapter_target_is_named() -> None:
    expected = r"lora_targets: here has no layer \['c_attn'\], only .*'q_proj'"
    with pytest.raises(ValueError, match=expected):
        build(model="here", lora_targets=("q_proj", "c_attn"))


def all_linear(llm: PreTrainedModel) -> set[str]:
    head = llm.get_output_embeddings()
    kinds = (torch.nn.Linear, Conv1D)
    return {n for n, m in llm.named_modules() if isinstance(m, kinds) and m is not head}


@pytest.mark.parametrize("kind", LLMS)
def test_all_linear_layers_may_get_adapters_whatever_they_are_called(kind: str) -> None:
    expected = all_linear(LLMS[kind]())
    generator = build(LLMS[kind](), mode="lora", lora_targets="all-linear")
    adapted = {
        name.removeprefix("llm.base_model.model.").rsplit(".lora_", 1)[0]
        for name in trained(generator)
    }
    assert adapted == expected
    assert len(trained(generator)) == 2 * len(expected)


def test_all_linear_is_the_usual_choice_of_a_llama(tmp_path: Path) -> None:
    """The same adapters, and the same loss with packed rows and faster frozen layers."""
    from safetensors.torch import load_file

    ids, mask, labels, _ = batch()
    found = []
    for number, targets in enumerate((GeneratorConfig().lora_targets, "all-linear")):
        torch.manual_seed(1)
        generator = build(mode="lora", lora_targets=targets)
        frozen = [m for m in generator.modules() if type(m) is FrozenLinear]
        generator.save_adapter(tmp_path / str(number), generator.trained())
        saved = load_file(tmp_path / str(number) / "adapter_model.safetensors")
        generator.load_adapter(saved, "file")
        losses = [generator.loss(generator.embed(ids), mask, labels, s) for s in (None, 0)]
        torch.testing.assert_close(losses[0], losses[1])
        losses[1].backward()
        generator.merge_adapters()
        found.append((trained(generator), saved.keys(), len(frozen), losses[1].item()))
    assert found[0] == found[1]
    assert found[0][2] == 2 * 7 + 1  # and the one that gives logits


def test_adapters_are_saved_and_read_back_whole(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    ids, mask, labels, _ = batch()

    def loss(generator: Generator) -> float:
        return generator.loss(generator.embed(ids), mask, labels).item()

    one, other = build(), build()
    with torch.no_grad():
        for weight in one.parameters():
            if weight.requires_grad:
                weight.normal_(std=0.1)
    one.save_adapter(tmp_path, one.trained())
    assert loss(one) != loss(other)
    tensors = load_file(tmp_path / "adapter_model.safetensors")
    other.load_adapter(tensors, "file")
    assert loss(one) == loss(other)

    first = min(tensors)
    with pytest.raises(ValueError, match=rf"^file lacks {first}; 1 such"):
        other.load_adapter({k: v for k, v in tensors.items() if k != first}, "file")
    with pytest.raises(ValueError, match=r"^file has another shape of "):
        build(lora_rank=2).load_adapter(tensors, "file")


def test_check_tensors_names_the_first_that_differs() -> None:
    a, b = torch.zeros(2, 3), torch.zeros(4)
    check_tensors({"a": a, "b": b}, {"b": b + 1, "a": a}, "here")
    for found, message in (
        ({"b": b}, "here lacks a; 1 such tensors"),
        ({}, "here lacks a; 2 such tensors"),
        ({"a": a, "b": b, "c": a}, "here has an unknown c; 1 such tensors"),
        (
            {"a": a.T, "b": b},
            r"here has another shape of a \(\(3, 2\), expected \(2, 3\)\); 1 such",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            check_tensors({"a": a, "b": b}, found, "here")


# Loading


def test_a_fingerprint_tells_models_apart_but_not_precisions() -> None:
    base, narrow = tiny.llm(), tiny.llm().to(torch.bfloat16)
    assert fingerprint(base) == fingerprint(narrow) == fingerprint(narrow.float())
    assert fingerprint(tiny.llm(seed=1)) != fingerprint(base)
    finetuned = copy.deepcopy(base)  # with the same word embeddings
    finetuned.model.layers[1].mlp.up_proj.weight.data += 0.1
    assert fingerprint(finetuned) != fingerprint(base)
    assert build(base, mode="lora").fingerprint == fingerprint(tiny.llm())


def test_an_ordinary_folder_is_loaded(tmp_path: Path) -> None:
    folder = tiny.save_llm(tmp_path / "llm")
    ids, mask, labels, _ = batch()
    expected = build(mode="frozen")
    cpu = torch.device("cpu")
    for mode in ("frozen", "lora", "full"):
        config = GeneratorConfig(model=str(folder), mode=mode)
        found = load(config, tmp_path, device=cpu).eval()
        assert {w.dtype for w in found.parameters()} == {torch.float32}
        assert found.fingerprint == expected.fingerprint
        assert found.tokenizer.chat_template == tiny.CHATML
        assert found.loss(found.embed(ids), mask, labels) == expected.loss(
            expected.embed(ids), mask, labels
        )
    assert trained(load(config, tmp_path, device=cpu, tuned=False)) == set()
    assert found.hidden == 64
    words = tiny.llm().get_input_embeddings().weight
    assert found.word_norm == pytest.approx(words.norm(dim=1).mean().item())


@pytest.mark.parametrize(
    ("device", "mode", "dtype"),
    [
        ("cpu", "lora", torch.float32),
        ("cuda", "lora", torch.bfloat16),
        ("cuda", "frozen", torch.bfloat16),
        ("cuda", "full", torch.float32),
    ],
)
def test_precision_goes_by_device_and_mode(
    device: str, mode: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    config = GeneratorConfig(model=str(tiny.save_llm(tmp_path)), mode=mode)
    generator = load(config, tmp_path, device=torch.device(device))
    assert generator.embed(torch.tensor([[1]])).dtype == dtype


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    config = GeneratorConfig(model=str(tmp_path))
    with pytest.raises(ValueError, match=rf"generator\.model: cannot load '{tmp_path}'"):
        load(config, tmp_path, device=torch.device("cpu"))


def test_four_bits_train_adapters_and_answer(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    folder, cpu = tiny.save_llm(tmp_path / "llm"), torch.device("cpu")
    whole = load(GeneratorConfig(model=str(folder), lora_dropout=0.0), tmp_path, device=cpu)
    config = GeneratorConfig(model=str(folder), quantize="nf4", lora_dropout=0.0)
    narrow = load(config, tmp_path, device=cpu)
    ids, mask, labels, _ = batch()
    expected = whole.loss(whole.embed(ids), mask, labels)
    found = narrow.loss(narrow.embed(ids), mask, labels)
    assert found != expected
    torch.testing.assert_close(found, expected, rtol=0.1, atol=0.0)
    found.backward()
    names = [name for name, weight in narrow.named_parameters() if weight.grad is not None]
    assert names
    assert all("lora_" in name for name in names)
    held, plain = (
        sum(w.numel() * w.element_size() for n, w in g.named_parameters() if "layers" in n)
        for g in (narrow, whole)
    )
    assert held < 0.6 * plain  # adapters and norms are as wide as ever
    assert narrow.fingerprint != whole.fingerprint
    narrow.merge_adapters()
    assert narrow.has_adapters
    assert all(narrow.eval().generate(narrow.embed(ids), mask, [PAD]).tokens)


def test_four_bits_without_the_package_and_for_whole_training_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match=r"generator\.quantize must be none with generator\.mode"):
        GeneratorConfig(mode="full", quantize="nf4")
    monkeypatch.setattr("bisrqa.generator.is_bitsandbytes_available", lambda: False)
    config = GeneratorConfig(model=str(tiny.save_llm(tmp_path)), quantize="nf4")
    with pytest.raises(ValueError, match=r"pip install 'bisrqa\[4bit\]'"):
        load(config, tmp_path, device=torch.device("cpu"))


@pytest.mark.parametrize(
    ("wanted", "device", "there", "chosen"),
    [
        ("auto", "cpu", True, "sdpa"),
        ("auto", "cuda", False, "sdpa"),
        ("auto", "cuda", True, "flash_attention_2"),
        ("eager", "cuda", True, "eager"),
    ],
)
def test_attention_goes_by_what_is_there(
    wanted: str, device: str, there: bool, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bisrqa.generator.is_flash_attn_2_available", lambda: there)
    assert _attention(wanted, torch.device(device)) == chosen


def test_the_loss_is_the_same_by_either_attention(tmp_path: Path) -> None:
    folder, losses = tiny.save_llm(tmp_path / "llm"), []
    ids, mask, labels, _ = batch()
    for wanted in ("sdpa", "eager"):
        config = GeneratorConfig(model=str(folder), mode="frozen", attention=wanted)
        found = load(config, tmp_path, device=torch.device("cpu"))
        used = found.llm.config._attn_implementation
        assert used == (
            packing.NAME if wanted == "sdpa" else wanted
        )  # which is sdpa for padded rows
        losses.append(found.loss(found.embed(ids), mask, labels).item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
