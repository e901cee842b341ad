"""Fixtures shared by the test files, and what holds for all of them."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

# Before torch is imported, and for the processes that tests start. Tiny models gain nothing from a
# second thread, and threads that wait for one another on a busy machine cost several times more.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

if not torch.cuda.is_available():
    # Triton reads this when something first imports it, which can be any test file.
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(scope="session")
def sample_data() -> Path:
    """The folder of sample data; a test that asks for it is skipped where there is none."""
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("BISRQA_DATA", default))
    if not folder.is_dir():
        pytest.skip(f"no sample data at {folder}; set BISRQA_DATA to its folder")
    return folder


@pytest.fixture
def set_threads() -> Iterator[Callable[[int], None]]:
    """Sets how many threads PyTorch and the kernels take, until the test ends."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)
