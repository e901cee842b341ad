"""How much memory a run took, and whether it ran out."""

import contextlib
import resource
import sys
from collections.abc import Callable, Iterator

import torch


def peak_bytes(device: torch.device) -> int:
    """Most memory held: on an accelerator since its counter was reset, else by this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def ran_out(error: BaseException) -> bool:
    """Whether an error says that there is no memory left, on any device."""
    kinds = torch.OutOfMemoryError | MemoryError
    return isinstance(error, kinds) or "can't allocate memory" in str(error)


@contextlib.contextmanager
def explained(message: Callable[[], str]) -> Iterator[None]:
    """Say in place of an error of want of memory what can be done about it.

    Raises:
        MemoryError: With that message; other errors pass.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not ran_out(error):
            raise
        raise MemoryError(message()) from error
