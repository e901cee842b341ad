"""How a model stands in several processes: whole in each, or in shards.

Whole, every process has its own questions and gradients are averaged. In shards (FSDP2) a process
holds a part of every layer and gathers the layer while it is at work, so all of them have to pass
through the model equally often; what ``most`` and ``any`` are for. Whoever saves gathers what was
trained, so that a checkpoint is the same however it was made.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin, broadcast, reduce
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from bisrqa.config import GeneratorConfig
from bisrqa.generator import whole
from bisrqa.model import BiSRQA

WHOLE = (DistributedType.NO, DistributedType.MULTI_GPU, DistributedType.MULTI_CPU)


class Whole:
    """Every process has the whole model."""

    sharded = False

    def __init__(self, accelerator: Accelerator):
        self.accelerator = accelerator

    def prepare(
        self, model: BiSRQA, optimizer_of: Callable[[BiSRQA], Optimizer]
    ) -> tuple[nn.Module, Optimizer]:
        """The model to call for losses, on its device, and the optimizer of its weights."""
        wrapped = self.accelerator.prepare(model)
        return wrapped, optimizer_of(model)

    def waits(self, wrapped: nn.Module, wait: bool) -> contextlib.AbstractContextManager[Any]:
        """A pass inside exchanges no gradients yet, if it is to wait."""
        return self.accelerator.no_sync(wrapped) if wait else contextlib.nullcontext()

    def clip(self, wrapped: nn.Module, largest: float) -> float:
        """Bring the norm of all gradients down to ``largest``; returns what it was."""
        norm = self.accelerator.clip_grad_norm_(wrapped.parameters(), largest)
        return float(whole(cast(Tensor, norm)))

    def most(self, count: int) -> int:
        """The largest of the processes' counts, where all have to do the same; else this one's."""
        return count

    def any(self, here: bool) -> bool:
        """Whether it is so in any process, where all have to do the same; else in this one."""
        return bool(self.most(int(here)))

    def trained(self, model: BiSRQA) -> contextlib.AbstractContextManager[Any]:
        """What was trained can be read inside, with :func:`whole`, by all processes together."""
        return contextlib.nullcontext()

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Of all weights, as one process alone would have it."""
        return optimizer.state_dict()

    def load_optimizer(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        """Put what :meth:`optimizer_state` gave back, in however many processes."""
        optimizer.load_state_dict(state)


class Sharded(Whole):
    """Each layer of the language model is spread over the processes (FSDP2).

    The encoder, which is small, is whole in each. Weights keep their types: a frozen base in
    bfloat16 and adapters in float32 share a layer.

    Args:
        accelerator: Devices and processes.
        plugin: accelerate's settings.

    Raises:
        ValueError: A setting that this package does not follow; says what to set.
    """

    sharded = True

    def __init__(self, accelerator: Accelerator, plugin: FullyShardedDataParallelPlugin):
        super().__init__(accelerator)
        self._layers = plugin.transformer_cls_names_to_wrap
        self._frees = bool(plugin.reshard_after_forward)
        offloads = os.environ.get("FSDP_OFFLOAD_PARAMS", "false").lower() == "true"
        for name, value, expected, instead in (
            ("fsdp_version", plugin.fsdp_version, 2, ""),
            ("fsdp_offload_params", offloads, False, ""),
            ("fsdp_activation_checkpointing", plugin.activation_checkpointing, False,
             "; set training.gradient_checkpointing instead"),
            ("fsdp_cpu_ram_efficient_loading", plugin.cpu_ram_efficient_loading, False, ""),
        ):  # fmt: skip
            if value != expected:
                raise ValueError(
                    f"accelerate's {name} must be {str(expected).lower()}, got {value}{instead} "
                    "(configs/accelerate/fsdp2.yaml)"
                )

    def prepare(
        self, model: BiSRQA, optimizer_of: Callable[[BiSRQA], Optimizer]
    ) -> tuple[nn.Module, Optimizer]:
        device = self.accelerator.device
        kept = list(model.encoder.parameters()) if model.encoder is not None else []
        if model.encoder is not None:
            model.encoder.to(device)
        with torch.no_grad():  # each process cuts its shard out of its own copy
            for weight in [*kept, *model.generator.trained().values()]:
                weight.copy_(cast(Tensor, broadcast(weight.to(device))))
        self._kept = [p for p in kept if p.requires_grad]
        mesh = init_device_mesh(device.type, (self.accelerator.num_processes,))
        for layer in self._found(model):
            fully_shard(layer, mesh=mesh, reshard_after_forward=self._frees)
        fully_shard(model, mesh=mesh, ignored_params=set(kept))
        register_fsdp_forward_method(model, "generate")
        model.generator.together = self.any
        return model, optimizer_of(model)

    def _found(self, model: BiSRQA) -> list[nn.Module]:
        llm = cast(Any, model.generator.llm)
        base = llm.get_base_model() if model.generator.has_adapters else llm
        names = self._layers or base._no_split_modules or ()
        layers = [module for module in base.modules() if type(module).__name__ in names]
        if not layers:
            raise ValueError(
                f"{model.generator.config.model} has no layers of the class {', '.join(names)}: "
                "name that of its layers in accelerate's fsdp_transformer_layer_cls_to_wrap"
            )
        return layers

    @contextlib.contextmanager
    def waits(self, wrapped: nn.Module, wait: bool) -> Iterator[None]:
        cast(Any, wrapped).set_requires_gradient_sync(not wait)
        with self.accelerator.autocast():  # of mode full; accelerate wraps what it has prepared
            yield

    def clip(self, wrapped: nn.Module, largest: float) -> float:
        if self._kept:  # FSDP has averaged the gradients of its own weights
            flat = torch.cat([cast(Tensor, p.grad).flatten() for p in self._kept])
            mean = cast(Tensor, reduce(flat, "mean"))
            for weight, part in zip(
                self._kept, mean.split([p.numel() for p in self._kept]), strict=True
            ):
                weight.grad = part.view_as(weight)
        return super().clip(wrapped, largest)

    def most(self, count: int) -> int:
        count_here = torch.tensor(count, device=self.accelerator.device)
        torch.distributed.all_reduce(count_here, torch.distributed.ReduceOp.MAX)
        return int(count_here)

    def trained(self, model: BiSRQA) -> contextlib.AbstractContextManager[Any]:
        cast(Any, model).reshard()  # after replies the outermost weights are still gathered
        return contextlib.nullcontext()

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        state = optimizer.state_dict()
        state["state"] = {
            number: {k: whole(v) if isinstance(v, Tensor) else v for k, v in values.items()}
            for number, values in state["state"].items()
        }
        return state

    def load_optimizer(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        weights = [p for group in optimizer.param_groups for p in group["params"]]
        spread = {
            number: {k: _like(v, weights[number]) for k, v in values.items()}
            for number, values in state["state"].items()
        }
        optimizer.load_state_dict({**state, "state": spread})


def _like(value: Any, weight: Tensor) -> Any:
    """A number for each of a weight's, spread as the weight is."""
    if not isinstance(weight, DTensor) or value.shape != weight.shape:
        return value
    return distribute_tensor(value.to(weight.device), weight.device_mesh, weight.placements)


def of(accelerator: Accelerator, config: GeneratorConfig) -> Whole:
    """How models are to stand in an accelerator's processes.

    Raises:
        ValueError: accelerate is set to something that is not supported; says what to set.
    """
    kind, plugin = accelerator.distributed_type, None
    if kind == DistributedType.FSDP:
        plugin = accelerator.state.fsdp_plugin
    elif kind == DistributedType.MULTI_CPU and os.environ.get("ACCELERATE_USE_FSDP") == "true":
        plugin = FullyShardedDataParallelPlugin()  # accelerate itself knows none on CPUs
    elif kind not in WHOLE:
        raise ValueError(
            f"accelerate is set to {kind.value}; configs/accelerate has what is supported"
        )
    if accelerator.gradient_accumulation_steps != 1:
        raise ValueError("training.batch_tokens splits a step, not accelerate's accumulation")
    if plugin is None:
        return Whole(accelerator)
    if config.quantize != "none":
        raise ValueError(
            f"generator.quantize {config.quantize} is for a model that stands whole on each "
            "device: set it to none, or use configs/accelerate/ddp.yaml"
        )
    return Sharded(accelerator, plugin)
