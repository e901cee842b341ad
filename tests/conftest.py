"""Fixtures shared by the test files."""

import os
from pathlib import Path

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
