"""The causal language model: how it is loaded and tuned, its loss, and its replies."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float, Int
from peft import (
    LoraConfig,
    PeftModel,
    get_peft_model,
    get_peft_model_state_dict,
    set_peft_model_state_dict,
)
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.pytorch_utils import Conv1D
from transformers.utils.import_utils import is_bitsandbytes_available, is_flash_attn_2_available

from bisrqa import decoding, dropout, linear, packing
from bisrqa.clock import now
from bisrqa.config import GeneratorConfig
from bisrqa.constraint import Lines, narrow
from bisrqa.packaged import resolve_model
from bisrqa.prompt import IGNORE


class Replies(NamedTuple):
    """What a batch of prompts was answered, and the seconds that it took."""

    texts: list[str]
    tokens: list[int]
    """Length of each reply, with the token that ends it."""
    prefill_seconds: float
    """To read the prompts; with beams 0, and counted below."""
    decode_seconds: float
    """To write the replies."""
    encode_seconds: float = 0.0
    """To make soft tokens and word embeddings."""


class Generator(nn.Module):
    """A language model that reads word embeddings, so that soft tokens can stand between words.

    Args:
        llm: The base model; it is frozen, unless ``config.mode`` is ``full``.
        tokenizer: Its tokenizer.
        config: How it is tuned.
        tuned: Give it the adapters of mode ``lora``; without, it stays the untrained base model.
    """

    def __init__(
        self,
        llm: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        config: GeneratorConfig,
        *,
        tuned: bool = True,
    ):
        super().__init__()
        self.config = config
        self.tokenizer = tokenizer
        self.fingerprint = fingerprint(llm)
        self.together: Callable[[bool], bool] = bool
        """Whether there is more to do; where processes share a layer's weights, in any of them."""
        llm.requires_grad_(tuned and config.mode == "full")
        # Many models bring sampling settings and penalties, which would fill what `generate` below
        # leaves open.
        llm.generation_config = GenerationConfig()
        self.can_pack = packing.prepare(llm)
        """Whether :meth:`loss` can lay rows end to end."""
        self.llm: PreTrainedModel | PeftModel = llm
        if tuned and config.mode == "lora":
            self.llm = with_adapters(llm, config)
            dropout.speed_up(self.llm)
        linear.speed_up(self.llm)

    @property
    def hidden(self) -> int:
        """Width of the word embeddings."""
        return self._words.weight.shape[1]

    @property
    def word_norm(self) -> float:
        """Mean norm of the word embeddings."""
        return float(self._words.weight.detach().float().norm(dim=-1).mean())

    @property
    def _words(self) -> nn.Embedding:
        return cast(nn.Embedding, self.llm.get_input_embeddings())

    @property
    def dtype(self) -> torch.dtype:
        """What the word embeddings are held in."""
        return self._words.weight.dtype

    @property
    def has_adapters(self) -> bool:
        """Whether adapters are what is trained."""
        return isinstance(self.llm, PeftModel)

    def checkpoint_activations(self) -> None:
        """Keep few activations and make the others again on the way back."""
        llm = cast(Any, self.llm)
        enable = getattr(llm, "activation_checkpointing_enable", None)  # the newer name
        (enable or llm.gradient_checkpointing_enable)({"use_reentrant": False})

    def embed(
        self, ids: Int[Tensor, "questions tokens"]
    ) -> Float[Tensor, "questions tokens hidden"]:
        """Word embeddings."""
        return self._words(ids)

    def loss(
        self,
        embeds: Float[Tensor, "questions tokens hidden"],
        attention_mask: Int[Tensor, "questions tokens"],
        labels: Int[Tensor, "questions tokens"],
        shared: int | None = None,
    ) -> Float[Tensor, ""]:
        """Cross-entropy, summed over answer tokens; logits are made for these alone.

        Args:
            embeds: Word embeddings and soft tokens.
            attention_mask: 0 on padding.
            labels: Ids of answer tokens, each of which the position before it has to foretell;
                ``IGNORE`` elsewhere. The first position has none.
            shared: Lay the rows end to end, which all begin with so many same tokens and have
                answers only behind them; where :attr:`can_pack` is true. None leaves the padding.
        """
        how: dict[str, Any] = {
            "attention_mask": attention_mask,
            "position_ids": positions(attention_mask),
        }
        if shared is not None:
            own = packing.own_tokens(attention_mask, shared)
            packed = packing.Packed(shared, tuple(attention_mask.sum(-1).tolist()))
            embeds, labels = embeds[own][None], labels[own][None]
            how = {
                "attention_mask": packed.mask().to(embeds.device),
                "position_ids": packed.positions().to(embeds.device),
                "packed": packed,
            }
        answers = labels[:, 1:] != IGNORE

        def at_answers(_: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return (given[0][:, :-1][answers][None], *given[1:])

        head = cast(nn.Module, self.llm.get_output_embeddings())
        hook = head.register_forward_pre_hook(at_answers)
        try:
            logits = self.llm(inputs_embeds=embeds, use_cache=False, **how).logits
        finally:
            hook.remove()
        return nn.functional.cross_entropy(
            logits[0].float(), labels[:, 1:][answers], reduction="sum"
        )

    @torch.no_grad()
    def generate(
        self,
        embeds: Float[Tensor, "questions tokens hidden"],
        attention_mask: Int[Tensor, "questions tokens"],
        stop_ids: list[int],
        prefix: Sequence[int] = (),
        lines: Sequence[Lines | None] | None = None,
    ) -> Replies:
        """Replies, greedy or by beams, without special tokens.

        Args:
            embeds: Left-padded.
            attention_mask: 0 on padding.
            stop_ids: Tokens that end a reply.
            prefix: Tokens that stand before every row; only where :attr:`shares_prefix` is true.
            lines: What each reply may be made of; None is anything.
        """
        if self.shares_prefix:
            made = decoding.greedy(
                self.llm,
                embeds,
                attention_mask,
                prefix=self.embed(torch.tensor([prefix], dtype=torch.long).to(embeds.device))[0],
                stop_ids=stop_ids,
                max_new_tokens=self.config.max_new_tokens,
                together=self.together,
                lines=lines,
            )
            return Replies(self.texts(made.ids), list(map(len, made.ids)), *made[1:])
        assert not prefix
        started = now(embeds.device)
        settings = GenerationConfig(
            max_new_tokens=self.config.max_new_tokens,
            num_beams=self.config.num_beams,
            do_sample=False,
            eos_token_id=stop_ids,
            pad_token_id=stop_ids[0]
            if self.tokenizer.pad_token_id is None
            else self.tokenizer.pad_token_id,
        )
        ids = cast(Any, self.llm).generate(
            inputs_embeds=embeds,
            attention_mask=attention_mask,
            generation_config=settings,
            logits_processor=LogitsProcessorList(
                [] if lines is None else [_Narrow(lines, self.config.num_beams)]
            ),
            synced_gpus=self.together is not bool,
        )
        stops = torch.isin(ids, torch.tensor(stop_ids, device=ids.device))
        lengths = (stops.cumsum(-1) - stops.long() == 0).sum(-1).tolist()  # what ends it counts
        return Replies(self.texts(ids), lengths, 0.0, now(embeds.device) - started)

    @property
    def shares_prefix(self) -> bool:
        """Whether :meth:`generate` can read what all prompts begin with once."""
        return self.config.num_beams == 1 and decoding.can_decode(self.llm.config)

    def texts(self, ids: Any) -> list[str]:
        """Replies in words, without special tokens."""
        return [text.strip() for text in self.tokenizer.batch_decode(ids, skip_special_tokens=True)]

    def keep_words(self) -> None:
        """Let go of everything but the word embeddings, where another engine has the layers."""
        self.llm = cast(Any, _Words(self._words, self.llm.config))

    def merge_adapters(self) -> None:
        """Add trained adapters to the weights that they adapt, which is faster to answer with.

        Only in float32, where it changes the last bits; narrower weights would lose the adapters'.
        They can be neither trained nor saved any more.
        """
        exact = self._words.weight.dtype == torch.float32 and self.config.quantize == "none"
        if isinstance(self.llm, PeftModel) and exact:
            self.llm = cast(PreTrainedModel, self.llm.merge_and_unload())

    def save_adapter(self, folder: Path, weights: Mapping[str, Tensor]) -> None:
        """Write adapters in peft's own layout (mode ``lora`` only).

        Args:
            folder: Where to.
            weights: :meth:`trained` ones, each of them whole.
        """
        assert isinstance(self.llm, PeftModel)
        self.llm.save_pretrained(str(folder), state_dict=dict(weights), save_embedding_layers=False)

    def trained(self) -> dict[str, Tensor]:
        """What is trained of the language model, by name; tied weights once."""
        return {name: p for name, p in self.llm.named_parameters() if p.requires_grad}

    def load_adapter(self, tensors: Mapping[str, Tensor], where: str) -> None:
        """Put saved adapter weights in; every one that this model has, and no other.

        Raises:
            ValueError: Missing or superfluous tensors, or other shapes; names the first.
        """
        assert isinstance(self.llm, PeftModel)
        check_tensors(
            get_peft_model_state_dict(self.llm, save_embedding_layers=False), tensors, where
        )
        set_peft_model_state_dict(self.llm, dict(tensors))


class _Narrow(LogitsProcessor):
    """Holds transformers' search to lines; it sees what was written alone, without the prompt."""

    def __init__(self, lines: Sequence[Lines | None], num_beams: int):
        self._lines = [line for line in lines for _ in range(num_beams)]

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        return narrow(scores, input_ids.tolist(), self._lines)


class _Words(nn.Module):
    """What is left of a language model without its layers."""

    def __init__(self, words: nn.Embedding, config: PretrainedConfig):
        super().__init__()
        self.words, self.config = words, config

    def get_input_embeddings(self) -> nn.Embedding:
        return self.words


def load(
    config: GeneratorConfig, cache_dir: Path, *, device: torch.device, tuned: bool = True
) -> Generator:
    """Load the base model and its tokenizer.

    Weights are float32 on a CPU (bfloat16 is many times slower there) and bfloat16 on an
    accelerator, except that all are trained in float32 with mode ``full``.
    """
    source = resolve_model(config.model, cache_dir)
    if config.revision is not None and Path(source).is_dir():
        raise ValueError(f"generator.revision is for hub names, and {config.model} is a folder")
    full = tuned and config.mode == "full"
    dtype = torch.float32 if device.type == "cpu" or full else torch.bfloat16
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, revision=config.revision)
        llm = AutoModelForCausalLM.from_pretrained(
            source,
            revision=config.revision,
            dtype=dtype,
            attn_implementation=_attention(config.attention, device),
            **_quantized(config.quantize, dtype, device),
        )
    except (OSError, ValueError) as error:
        raise ValueError(f"generator.model: cannot load {config.model!r}: {error}") from error
    return Generator(llm, tokenizer, config, tuned=tuned)


def _attention(wanted: str, device: torch.device) -> str:
    if wanted != "auto":
        return wanted
    fast = device.type == "cuda" and is_flash_attn_2_available()
    return "flash_attention_2" if fast else "sdpa"


def _quantized(wanted: str, dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
    """What a model is loaded with to be held in four bits."""
    if wanted == "none":
        return {}
    if not is_bitsandbytes_available():
        raise ValueError("generator.quantize needs bitsandbytes: pip install 'bisrqa[4bit]'")
    settings = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=wanted,
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
    )
    return {"quantization_config": settings, "device_map": {"": device}}


def whole(value: Tensor) -> Tensor:
    """A tensor on the CPU, out of its shards; then all processes have to ask for it."""
    value = value.detach()
    return (value.full_tensor() if isinstance(value, DTensor) else value).cpu().contiguous()


def positions(attention_mask: Int[Tensor, "questions tokens"]) -> Int[Tensor, "questions tokens"]:
    """Position of each token, counted from the first that is not padding."""
    return (attention_mask.cumsum(-1) - 1).clamp_min(0)


def fingerprint(llm: PreTrainedModel) -> str:
    """Tells base models apart by the names, shapes and a sample of their weights.

    The sample is taken in bfloat16, so that a model has the same fingerprint in either precision.
    """
    digest = hashlib.sha256()
    for name, weight in llm.named_parameters():
        values = weight.detach().reshape(-1)
        sample = values[:: max(1, len(values) // 32)].to(torch.bfloat16).cpu().contiguous()
        digest.update(f"{name}{tuple(weight.shape)}".encode())
        digest.update(sample.view(torch.int16).numpy().tobytes())
    return digest.hexdigest()[:16]


def check_tensors(expected: Mapping[str, Tensor], found: Mapping[str, Tensor], where: str) -> None:
    """Raise ``ValueError`` unless names and shapes agree."""
    for problem, names in (
        ("lacks", expected.keys() - found.keys()),
        ("has an unknown", found.keys() - expected.keys()),
        (
            "has another shape of",
            {n for n in expected.keys() & found.keys() if expected[n].shape != found[n].shape},
        ),
    ):
        if names:
            first = min(names)
            sizes = (
                f" ({tuple(found[first].shape)}, expected {tuple(expected[first].shape)})"
                if problem.endswith("of")
                else ""
            )
            raise ValueError(f"{where} {problem} {first}{sizes}; {len(names)} such tensors")


def with_adapters(llm: PreTrainedModel, config: GeneratorConfig) -> PeftModel:
    """Give a base model fresh adapters, the only weights of it that are trained."""
    targets = config.lora_targets
    layers = {
        name.rsplit(".", 1)[-1]: type(module)
        for name, module in llm.named_modules()
        if isinstance(module, nn.Linear | Conv1D)
    }
    settings = LoraConfig(
        r=config.lora_rank,
        lora_alpha=config.lora_alpha,
        lora_dropout=config.lora_dropout,
        target_modules=targets if isinstance(targets, str) else list(targets),
        fan_in_fan_out=Conv1D in layers.values(),  # as GPT-2 keeps its weights
        task_type="CAUSAL_LM",
    )
    if not isinstance(targets, str) and (absent := set(targets) - layers.keys()):
        raise ValueError(
            f"generator.lora_targets: {config.model} has no layer {sorted(absent)}, "
            f"only {sorted(layers)}"
        )
    return get_peft_model(llm, settings)
