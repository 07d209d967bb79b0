"""One hypothesis profile, one thread and one worker for all tests, so that a failure repeats anywhere."""

from __future__ import annotations

import torch
from hypothesis import settings

from securefl import processes

settings.register_profile("securefl", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("securefl")
torch.set_num_threads(1)
processes.processors = lambda: 1  # a test that wants several workers says how many
