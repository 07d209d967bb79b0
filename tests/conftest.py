"""One hypothesis profile, one thread, one worker and no GPU for all tests, so that a failure repeats."""

from __future__ import annotations

import os

import pytest
import torch
from hypothesis import settings

from securefl import processes

settings.register_profile("securefl", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("securefl")
torch.set_num_threads(1)
processes.processors = lambda: 1  # a test that wants several workers says how many


def pytest_configure(config: pytest.Config) -> None:
    """Hide a GPU, which a study would take by default, unless its tests are asked for (`-m gpu`)."""
    if config.option.markexpr != "gpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
