"""How much memory a run took."""

import resource
import sys

import torch


def peak_bytes(device: torch.device) -> int:
    """Most memory held: on an accelerator since its counter was reset, else by this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
